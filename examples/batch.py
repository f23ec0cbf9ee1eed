"""Several prompts in the same passes, answers in order. `python examples/batch.py [MODEL]`"""

import sys

import forerun

model = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m"
prompts = [
    "What is the capital of Norway?",
    "Translate to French: good morning.",
    "Count from one to ten in words.",
]

with forerun.LLM.load(model) as llm:
    for prompt, answer in zip(prompts, llm.generate_all(prompts, concurrency=3, max_tokens=32), strict=True):
        print(f"{prompt}\n  {' '.join(answer.text.split())}  ({answer.usage.completion_tokens} tokens)")
