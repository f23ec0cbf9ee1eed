"""Whether two models mean the same by the same token ids: what decides if one can draft for the other.

Token strings are compared, not sizes: models of one family pad their tables differently (Qwen2.5: 151,936 rows or 152,064
for the same 151,665 tokens). Ids that differ never make the output wrong, the target decides; they make drafts worthless.
"""

from __future__ import annotations

from dataclasses import dataclass

from forerun.tokenizers.tokenizer import Tokenizer

SHOWN = 5


@dataclass(frozen=True)
class Difference:
    """An id that two vocabularies read differently."""

    id: int
    target: str
    draft: str


@dataclass(frozen=True)
class VocabularyReport:
    """The comparison of a target's and a draft's vocabulary.

    target_size, draft_size: tokens without padding.
    differing: how many ids that both have stand for different strings; `differences` shows the first few.
    overlap: share of the target's token strings that the draft has too, under whatever id.
    common: ids below this mean the same in both, if `shared`; no other may be proposed.
    shared: whether the draft may read the target's ids and propose its own as they are.
    """

    target_size: int
    draft_size: int
    differing: int
    differences: tuple[Difference, ...]
    overlap: float
    same_bos: bool
    same_eos: bool
    shared: bool

    @property
    def common(self) -> int:
        """Ids that both vocabularies have."""
        return min(self.target_size, self.draft_size)

    def describe(self) -> str:
        """One line: sizes, overlap, first differences, and what follows."""
        parts = [f"{self.target_size} tokens against {self.draft_size}, {self.overlap:.1%} of the strings shared"]
        if self.differing:
            shown = ", ".join(f"{d.id}: {d.target!r} / {d.draft!r}" for d in self.differences)
            parts.append(f"{self.differing} ids differ ({shown}{', ...' if self.differing > SHOWN else ''})")
        if not self.same_bos:
            parts.append("begin-of-text tokens differ")
        if not self.same_eos:
            parts.append("end tokens differ")
        parts.append("the draft can use the target's ids" if self.shared else "the draft cannot use the target's ids")
        return "; ".join(parts)


def compare(target: Tokenizer, draft: Tokenizer, *, draft_rows: int | None = None) -> VocabularyReport:
    """Compares token strings id by id.

    draft_rows: rows of the draft model's embedding, padding included. Where the target has a few tokens more, a draft
    with rows for them can still read them; without rows it would have to stop at the first one.
    """
    ours, theirs = target.tokens, draft.tokens
    common = min(len(ours), len(theirs))
    wrong = [i for i in range(common) if ours[i] != theirs[i]]
    readable = max(draft.vocab_size, draft_rows or 0) >= target.vocab_size
    known = set(theirs)
    return VocabularyReport(
        target_size=len(ours),
        draft_size=len(theirs),
        differing=len(wrong),
        differences=tuple(Difference(i, ours[i], theirs[i]) for i in wrong[:SHOWN]),
        overlap=sum(token in known for token in ours) / max(1, len(ours)),
        same_bos=target.bos_id == draft.bos_id,
        same_eos=target.eos_ids == draft.eos_ids,
        shared=common > 0 and not wrong and readable,
    )
