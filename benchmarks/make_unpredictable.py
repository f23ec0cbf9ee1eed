"""Writes unpredictable.jsonl: prompts whose answers nothing can foresee, words of random syllables, asked at temperature 1."""

from __future__ import annotations

import json
import random
from pathlib import Path

CONSONANTS, VOWELS = "bcdfghjklmnpqrstvwz", "aeiouy"
ASKED = "Go on with this text of invented words that follow no pattern and never repeat: "


def word(chance: random.Random) -> str:
    syllables = chance.randint(1, 4)
    return "".join(
        chance.choice(CONSONANTS) + chance.choice(VOWELS) + (chance.choice(CONSONANTS) if chance.random() < 0.4 else "")
        for _ in range(syllables)
    )


def main() -> None:
    chance = random.Random(7)
    lines = [
        {"id": f"random-{index}", "category": "random", "prompt": ASKED + " ".join(word(chance) for _ in range(50))}
        for index in range(8)
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (Path(__file__).parent / "unpredictable.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
