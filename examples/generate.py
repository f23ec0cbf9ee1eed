"""One answer, with what speculation did for it. `python examples/generate.py [MODEL]`"""

import sys

import forerun

model = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m"

with forerun.LLM.load(model) as llm:
    answer = llm.generate("List three uses of a brick, each in one sentence.", max_tokens=64)

print(answer.text)
print()
print(f"{answer.usage.completion_tokens} tokens, {answer.timings.tokens_per_second:.1f} tokens/s")
print(f"mean acceptance length {answer.stats.mean_acceptance_length:.2f} over {answer.stats.steps} steps")
