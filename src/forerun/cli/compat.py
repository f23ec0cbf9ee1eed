"""`forerun compat`: whether one model can draft for another, from their vocabularies alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from forerun.cli.options import Backend

if TYPE_CHECKING:
    from forerun.assembly import FoundModel
    from forerun.tokenizers.tokenizer import Tokenizer
    from forerun.tokenizers.vocabulary import VocabularyReport

# Below this share of common token strings, a bridge would have next to nothing to propose.
_LEAST = 0.02
_SHOWN = 6


def compat(
    target: Annotated[str, typer.Argument(help="The model whose text is promised: name, file, folder or hub id.")],
    draft: Annotated[str, typer.Argument(help="The model that would draft for it.")],
    backend: Backend = "auto",
    json: Annotated[bool, typer.Option("--json", help="The same as one JSON object.")] = False,
) -> int:
    """Compare two vocabularies, token by token, and say what follows for drafting. No weights are loaded.

    The exit status is 1 where the second model cannot draft for the first.
    """
    from forerun.assembly import find_model
    from forerun.cli.output import Output
    from forerun.config import Config
    from forerun.models import TerminalProgress

    config = Config(backend=backend, progress=TerminalProgress())
    report = compared(find_model(target, config), find_model(draft, config))
    with Output() as out:
        if json:
            out.json(report)
        else:
            for line in lines(report):
                out.piece(line + "\n")
    return 0 if report["consequence"] != "cannot" else 1


def compared(target: FoundModel, draft: FoundModel) -> dict[str, Any]:
    """Everything there is to say, as plain data."""
    from forerun.tokenizers.vocabulary import compare

    ours, theirs = target.tokenizer, draft.tokenizer
    report = compare(ours, theirs, draft_rows=_rows(draft))
    consequence, why = _consequence(report, target.name, draft.name)
    return {
        "target": _side(target),
        "draft": _side(draft),
        "overlap": report.overlap,
        "ids_in_common": report.common,
        "differing_ids": report.differing,
        "differences": [{"id": d.id, "target": d.target, "draft": d.draft} for d in report.differences],
        "same_bos": report.same_bos,
        "same_eos": report.same_eos,
        "special": _special(ours, theirs),
        "consequence": consequence,
        "explanation": why,
    }


def lines(report: dict[str, Any]) -> list[str]:
    """The report for people."""
    shown = []
    for role in ("target", "draft"):
        side = report[role]
        ends = ", ".join(f"{token['id']} {token['token']}" for token in side["eos"]) or "none"
        bos = "none" if side["bos"] is None else f"{side['bos']['id']} {side['bos']['token']}"
        rows = "" if side["rows"] in (None, side["size"]) else f" in {side['rows']:,} rows"
        shown.append(
            f"{role:<8}{side['name']}: {side['size']:,} tokens{rows}, {side['control']:,} of them special; "
            f"begins with {bos}, ends with {ends}"
        )
    shown.append(f"overlap {report['overlap']:.1%} of the target's token strings exist in the draft's vocabulary")
    if report["differing_ids"]:
        first = ", ".join(f"{d['id']} {d['target']!r} / {d['draft']!r}" for d in report["differences"])
        more = ", ..." if report["differing_ids"] > len(report["differences"]) else ""
        shown.append(
            f"ids     {report['differing_ids']:,} of {report['ids_in_common']:,} mean something else: {first}{more}"
        )
    else:
        shown.append(f"ids     all {report['ids_in_common']:,} that both have mean the same")
    special = report["special"]
    for name, said in (
        ("moved", "under another id"),
        ("target_only", "of the target only"),
        ("draft_only", "of the draft only"),
    ):
        if special[name]:
            listed = ", ".join(special[name][:_SHOWN]) + (", ..." if len(special[name]) > _SHOWN else "")
            shown.append(f"special {len(special[name])} {said}: {listed}")
    return [*shown, f"so      {report['explanation']}"]


def _consequence(report: VocabularyReport, target: str, draft: str) -> tuple[str, str]:
    if report.shared:
        why = f"{draft} can draft for {target} as it is: --draft model:{draft}"
        return "shared", why if report.same_eos else why + " (their end tokens differ, so ends are drafted badly)"
    if report.overlap >= _LEAST:
        return "bridge", (
            f"{draft} needs a bridge to draft for {target}: it reads the text in its own tokens, and what it proposes is "
            "put into the target's; the text stays exact, and fewer tokens are accepted than with a shared vocabulary"
        )
    return "cannot", f"{draft} cannot draft for {target}: they have next to no token in common; choose another model"


def _side(source: FoundModel) -> dict[str, Any]:
    tokenizer = source.tokenizer
    return {
        "name": source.name,
        "size": tokenizer.vocab_size,
        "rows": _rows(source),
        "control": len(tokenizer.control_ids),
        "bos": None if tokenizer.bos_id is None else _token(tokenizer, tokenizer.bos_id),
        "eos": [_token(tokenizer, token) for token in sorted(tokenizer.eos_ids)],
    }


def _rows(source: FoundModel) -> int | None:
    return None if source.weights is None else source.weights.spec.vocab_size


def _token(tokenizer: Tokenizer, token: int) -> dict[str, Any]:
    return {"id": token, "token": tokenizer.id_to_token(token)}


def _special(target: Tokenizer, draft: Tokenizer) -> dict[str, list[str]]:
    """Special tokens that the two do not have alike, by their strings."""
    ours, theirs = (
        {each.id_to_token(token): token for token in sorted(each.control_ids) if token < each.vocab_size}
        for each in (target, draft)
    )
    return {
        "moved": [name for name, token in ours.items() if theirs.get(name, token) != token],
        "target_only": [name for name in ours if name not in theirs],
        "draft_only": [name for name in theirs if name not in ours],
    }
