"""Models from the Hugging Face hub, through the optional `huggingface_hub` package and its own cache.

What a repository holds is asked once, and not for long: who has no network must learn it at once.

`org/name` is a repository; `org/name:FILE.gguf` one file of it, for which any part of the file's name that occurs once
will do (`org/name:Q4_K_M`); `org/name@REVISION` a branch, tag or commit, before the colon. Of a GGUF that is split over
several files all are fetched, and the first stands for it.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forerun.errors import FetchError, ForerunError, ModelFileError, UnknownModelError, UnsupportedModelError
from forerun.models.progress import Progress

_ID = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_REFERENCE = re.compile(rf"(?P<repo>{_ID}/{_ID})(?:@(?P<revision>[^:@]+))?(?::(?P<file>[^:]+))?")

# Seconds for the first answer.
QUICK = 5.0
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)

# All that a folder of weights needs; repositories often hold the same weights in other formats too.
FOLDER_FILES = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model")


@dataclass(frozen=True)
class HubReference:
    """A repository of the hub, and which file of it (or a part of its name) where that was said."""

    repo: str
    revision: str | None = None
    file: str | None = None

    @classmethod
    def parse(cls, text: str) -> HubReference | None:
        """What `text` refers to, or None when it does not have the form of a reference."""
        found = _REFERENCE.fullmatch(text)
        return cls(found["repo"], found["revision"], found["file"]) if found else None


def resolve_hub(reference: HubReference, pull: bool = True) -> Path:
    """Local path of a GGUF file or of a folder of weights; fetched first when `pull`, which then needs the network.

    Raises FetchError (no `huggingface_hub`, no network, not pulled yet), UnknownModelError (no such repository, or one
    that needs a login) and ModelFileError or UnsupportedModelError (what file to take, or that there is none to run).
    """
    try:
        import huggingface_hub as hub
    except ImportError as error:
        raise FetchError(
            f"there is no file or folder {reference.repo} here, and to look on the Hugging Face hub the huggingface_hub "
            'package is needed; check the path, or run `pip install "forerun[hub]"`'
        ) from error
    try:
        files = _list_files(hub, reference, pull)
        chosen = _choose(reference, files)
        where: dict[str, Any] = {"revision": reference.revision, "local_files_only": not pull}
        if chosen is not None:
            parts = _shards(reference, chosen, files)
            return [Path(hub.hf_hub_download(reference.repo, part, **where)) for part in parts][0]  # noqa: RUF015
        return Path(hub.snapshot_download(reference.repo, allow_patterns=list(FOLDER_FILES), **where))
    except ForerunError:
        raise
    except Exception as error:
        raise _translated(reference, error, pull) from error


def _list_files(hub: Any, reference: HubReference, pull: bool) -> list[str]:
    if pull:
        try:
            told = hub.HfApi().model_info(reference.repo, revision=reference.revision, timeout=QUICK)
            return [sibling.rfilename for sibling in told.siblings or ()]
        except Exception as error:
            wrong = _translated(reference, error, pull)
            if not isinstance(wrong, FetchError):
                raise wrong from error
            # Without a network, what was fetched before still works.
            try:
                return _list_files(hub, reference, pull=False)
            except Exception:
                raise wrong from error
    folder = Path(hub.snapshot_download(reference.repo, revision=reference.revision, local_files_only=True))
    return [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]


def _choose(reference: HubReference, files: list[str]) -> str | None:
    """The GGUF file to take, or None for the whole folder of safetensors."""
    repo = reference.repo
    ggufs = [file for file in files if file.lower().endswith(".gguf")]
    if reference.file is None and "config.json" in files and any(file.endswith(".safetensors") for file in files):
        return None
    wanted = (reference.file or "").lower()
    exact = [file for file in ggufs if file.lower() == wanted]
    found = [file for file in exact or (file for file in ggufs if wanted in file.lower()) if _first(file)] or exact
    if len(found) == 1:
        return found[0]
    if not ggufs:
        raise UnsupportedModelError(
            f"{repo} holds neither a GGUF file nor safetensors with a config.json; choose a repository that does"
        )
    several = f"several GGUF files match {reference.file!r}" if reference.file else "there are several GGUF files"
    why = several if found else f"no GGUF file matches {reference.file!r}"
    raise ModelFileError(f"{repo}: {why}; name one as {repo}:FILE, of {', '.join(found or filter(_first, ggufs))}")


def _first(file: str) -> bool:
    """Whether a file is a whole model, or the first part of one."""
    part = _SHARD.fullmatch(file)
    return part is None or int(part["number"]) == 1


def _shards(reference: HubReference, chosen: str, files: list[str]) -> list[str]:
    """All parts of a model of which one was chosen, the first one first. Raises ModelFileError for one that is not there."""
    part = _SHARD.fullmatch(chosen)
    if part is None:
        return [chosen]
    parts = [f"{part['stem']}-{number:05}-of-{part['count']}.gguf" for number in range(1, int(part["count"]) + 1)]
    for missing in (name for name in parts if name not in files):
        raise ModelFileError(f"{reference.repo}: {missing} is missing, a part of {chosen}; choose another file")
    return parts or [chosen]


def fetch_same(repo: str, sha256: str, folder: Path, progress: Progress) -> Path | None:
    """A file of a repository by its SHA-256, fetched into `folder` (what arrived earlier is gone on from).

    None where `huggingface_hub` is not installed, the hub does not answer at once, or it has no such file.
    """
    try:
        import huggingface_hub as hub

        told = hub.HfApi().model_info(repo, files_metadata=True, timeout=QUICK)
        same = [file.rfilename for file in told.siblings or () if file.lfs is not None and file.lfs.sha256 == sha256]
        if not same:
            return None
        progress.note(f"fetching {same[0]} from {repo} on the Hugging Face hub")
        return Path(hub.hf_hub_download(repo, same[0], revision=told.sha, local_dir=folder))
    except Exception as error:  # its classes moved between versions, and there is another place to fetch from
        logging.getLogger("forerun.models").info("nothing from the hub (%s)", error)
        return None


def _translated(reference: HubReference, error: Exception, pull: bool) -> ForerunError:
    """One line for what the hub's package raised, told apart by class name: its classes moved between versions."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    repo, said = reference.repo, (str(error).strip().splitlines() or [type(error).__name__])[0]
    if "LocalEntryNotFoundError" in kinds and not pull:
        return ModelFileError(f"{repo} is not on this machine; run `forerun pull {repo}`")
    if "GatedRepoError" in kinds:
        return UnknownModelError(f"{repo} is gated: accept its terms on the hub and log in with `hf auth login`")
    if "RevisionNotFoundError" in kinds:
        return UnknownModelError(f"{repo} has no revision {reference.revision!r}; check its branches and tags")
    if kinds & {"RepositoryNotFoundError", "HFValidationError"}:
        return UnknownModelError(
            f"no model {repo!r}: neither a local path nor a repository of the hub (private ones need `hf auth login`); "
            "check the spelling"
        )
    return FetchError(f"cannot fetch {repo} from the hub: {said}; check the network and try again")
