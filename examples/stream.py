"""Text as it is made; what was drafted and accepted stands in [brackets]. `python examples/stream.py [MODEL]`"""

import sys

import forerun

model = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m"

with forerun.LLM.load(model) as llm:
    # The same seed gives the same text, whatever is drafted.
    stream = llm.stream("Say the days of the week, twice.", max_tokens=64, temperature=0.8, seed=7)
    for chunk in stream:
        for piece, accepted in zip(chunk.pieces, chunk.accepted, strict=True):
            print(f"[{piece}]" if accepted else piece, end="", flush=True)

print(f"\n\nended by {stream.completion.finish_reason}, seed {stream.completion.seed}")
