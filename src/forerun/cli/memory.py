"""`forerun memory`: the texts that the suffix drafter starts from, kept in a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forerun.cli.files import apart, reading
from forerun.cli.options import Backend, Model
from forerun.cli.output import Output, complain, note, reason
from forerun.errors import ForerunError, UsageError

if TYPE_CHECKING:
    from forerun.assembly import FoundModel
    from forerun.drafters.history import History

memory = typer.Typer(help="Texts for the suffix drafter to start from (--draft suffix --memory FILE).")
File = Annotated[Path, typer.Argument(help="The memory file.", metavar="FILE")]
Json = Annotated[bool, typer.Option("--json", help="The same as one JSON object.")]
# Fields of a JSON line that hold text, in the order in which they follow each other.
_FIELDS = ("text", "prompt", "turns", "messages", "completion", "response", "answer", "output")
# The most bytes of one file that are read; a history keeps far less.
_LONGEST = 64 << 20


@memory.command("build")
def build(
    file: File,
    corpora: Annotated[list[Path], typer.Argument(help="Text files, and JSON lines (.jsonl).", metavar="TEXT...")],
    model: Model = None,
    space: Annotated[str, typer.Option(help="A named part of the memory; spaces never see each other.")] = "",
    limit: Annotated[
        int | None, typer.Option(help="Most tokens kept of each space, the newest; 200000 unless said before.")
    ] = None,
    most_spaces: Annotated[
        int | None, typer.Option(help="Most spaces, those used last; 64 unless said before.")
    ] = None,
    backend: Backend = "auto",
    json: Json = False,
) -> int:
    """Read texts in the model's tokens into a memory file, adding to what it holds."""
    from forerun.drafters.history import History

    if limit is not None and limit < 4:
        raise UsageError(f"--limit is {limit}; it must be at least 4 tokens.")
    if most_spaces is not None and most_spaces < 1:
        raise UsageError(f"--most-spaces is {most_spaces}; it must be at least 1.")
    apart(file, *corpora)
    source = _source(model, backend)
    history = History.load(
        file,
        limit=limit,
        most_spaces=most_spaces,
        vocabulary=source.vocabulary,
        vocab_size=source.tokenizer.vocab_size,
    )
    read = tokens = 0
    for corpus in corpora:
        for text in texts(corpus):
            ids = source.tokenizer.encode(text, add_bos=False)
            history.space(space).add(ids)
            read, tokens = read + 1, tokens + len(ids)
    if not read:
        raise UsageError(f"there is no text in {', '.join(map(str, corpora))}; nothing was written.")
    _save(history, file)
    note(f"forerun: {read:,} texts with {tokens:,} tokens of {source.name} read into {file}")
    _show(history, file, json)
    return 0


@memory.command("inspect")
def inspect(file: File, json: Json = False) -> int:
    """Show the spaces of a memory file and what they hold."""
    _show(_existing(file), file, json)
    return 0


@memory.command("clear")
def clear(
    file: File,
    space: Annotated[str | None, typer.Option(help="Forget this space only; `` is the one without a name.")] = None,
) -> int:
    """Forget what a memory file holds: one space, or everything, and then the file."""
    from forerun.core.files import locked

    history = _existing(file)
    if space is None:
        try:
            with locked(file):
                _existing(file)  # what lies there now, and not a moment ago
                file.unlink()
        except OSError as error:
            raise ForerunError(f"cannot remove {file}: {reason(error)}.") from error
        note(f"forerun: {file} is gone")
        return 0
    names = [report.name for report in history.inspect()]
    if space not in names:
        raise UsageError(f"{file} has no space {space!r}; it has {', '.join(map(repr, names)) or 'none'}.")
    history.clear(space)
    _save(history, file)
    note(f"forerun: the space {space!r} of {file} is empty")
    return 0


def texts(path: Path) -> Iterator[str]:
    """The texts of a file: each line of a .jsonl file, else the whole. Malformed lines are passed over, with a warning.

    Raises UsageError for a file that cannot be read, is too large, or is not text.
    """
    with reading(path):
        if path.stat().st_size > _LONGEST:
            raise UsageError(
                f"{path} is larger than {_LONGEST >> 20} MB, of which a memory keeps little; cut it first."
            )
        whole = path.read_bytes().decode("utf-8")
    if path.suffix.lower() not in (".jsonl", ".ndjson"):
        yield from [whole] if whole.strip() else []
        return
    for number, line in enumerate(whole.split("\n"), 1):
        if line.strip():
            text = _of_line(line)
            if text is None:
                complain(f"{path} line {number} has no text (one of {', '.join(_FIELDS)}); it is passed over.")
            elif text.strip():
                yield text


def _of_line(line: str) -> str | None:
    """The text of a JSON line: a string, or what its known fields hold; None for anything else."""
    import json

    try:
        entry = json.loads(line)
    except ValueError:
        return None
    if isinstance(entry, str):
        return entry
    if not isinstance(entry, dict):
        return None
    pieces = [piece for name in _FIELDS if name in entry for piece in _strings(entry[name])]
    return "\n".join(pieces) if pieces else None


def _strings(value: Any) -> list[str]:
    """The strings in a value: itself, those of a list, the content of messages."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return [piece for each in value for piece in _strings(each)]
    return _strings(value.get("content")) if isinstance(value, dict) else []


def _source(model: str | None, backend: str) -> FoundModel:
    from forerun.assembly import find_model
    from forerun.config import Config
    from forerun.models import DEFAULT_MODEL, TerminalProgress

    config = Config(backend=backend, progress=TerminalProgress())
    return find_model(model or DEFAULT_MODEL, config)


def _existing(file: Path) -> History:
    """The memory in a file that must be there and be one."""
    from forerun.drafters.history import History

    if not file.exists():
        raise UsageError(f"there is no file {file}; `forerun memory build {file} TEXT...` makes one.")
    return History.load(file)


def _save(history: History, file: Path) -> None:
    try:
        history.save(file)
    except OSError as error:
        raise ForerunError(f"cannot write {file}: {reason(error)}.") from error


def _show(history: History, file: Path, json: bool) -> None:
    reports = history.inspect()
    with Output() as out:
        if json:
            spaces = [{"space": r.name, "texts": r.texts, "tokens": r.tokens} for r in reports]
            size = file.stat().st_size if file.exists() else 0
            out.json({"file": str(file), "bytes": size, "vocabulary": history.vocabulary, "spaces": spaces})
            return
        width = max([len("space"), *(len(repr(r.name)) for r in reports)])
        out.piece(f"{'space':<{width}}  {'texts':>9}  {'tokens':>11}\n")
        for r in reports:
            out.piece(f"{r.name!r:<{width}}  {r.texts:>9,}  {r.tokens:>11,}\n")
