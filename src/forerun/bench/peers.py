"""Other engines, measured in the same process on the same file: llama.cpp through llama-cpp-python's low-level calls."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from forerun.errors import UsageError


class Peer(Protocol):
    """What a pass benchmark asks of an engine: read tokens, run a pass of some rows over them, forget those rows."""

    name: str

    def read(self, tokens: Sequence[int]) -> None:
        """Start an empty text and read these tokens, no logits wanted."""
        ...

    def rows(self, tokens: Sequence[int]) -> None:
        """One pass over these tokens with logits for each, after what was read; then roll it back."""
        ...

    def close(self) -> None: ...


def llama_cpp() -> Any:
    """The module of llama-cpp-python. Raises UsageError where it is not installed."""
    try:
        import llama_cpp
    except ImportError:
        raise UsageError(
            "the llama.cpp peer needs llama-cpp-python, which is not installed; run "
            "`pip install llama-cpp-python` (it compiles for some minutes)."
        ) from None
    return llama_cpp


class Opened:
    """A GGUF file opened by llama.cpp, with a context for texts of `context` tokens together, and a batch of tokens for it.

    batch, rows: most tokens of a call, and of a pass in it.
    Raises UsageError where llama-cpp-python is not installed or cannot open the file.
    """

    def __init__(self, path: Path, *, threads: int, context: int, batch: int, rows: int, sequences: int = 1) -> None:
        self._api = api = llama_cpp()
        self.name = f"llama.cpp (llama-cpp-python {api.__version__})"
        # It prints pages to stderr otherwise. The callback must outlive the library's use of it.
        self._silence = api.llama_log_callback(lambda level, text, data: None)
        api.llama_log_set(self._silence, None)
        api.llama_backend_init()
        self._model = api.llama_model_load_from_file(str(path).encode(), api.llama_model_default_params())
        if not self._model:
            raise UsageError(f"llama.cpp cannot open {path}; give a GGUF file of an architecture that it knows.")
        params = api.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = context, batch, rows
        params.n_threads = params.n_threads_batch = threads
        params.n_seq_max = sequences
        self._context = api.llama_init_from_model(self._model, params)
        if not self._context:
            raise UsageError(f"llama.cpp cannot make a context of {context} tokens for {path}.")
        self._memory = api.llama_get_memory(self._context)
        self._batch = api.llama_batch_init(batch, 0, 1)
        self._size = batch

    @property
    def vocab(self) -> int:
        """Width of a row of logits."""
        return int(self._api.llama_vocab_n_tokens(self._api.llama_model_get_vocab(self._model)))

    def close(self) -> None:
        self._api.llama_batch_free(self._batch)
        self._api.llama_free(self._context)
        self._api.llama_model_free(self._model)

    def _put(self, index: int, token: int, position: int, sequence: int, logits: bool) -> None:
        """One token of the batch."""
        batch = self._batch
        batch.token[index], batch.pos[index] = token, position
        batch.n_seq_id[index], batch.seq_id[index][0] = 1, sequence
        batch.logits[index] = 1 if logits else 0

    def _run(self, tokens: int) -> None:
        """One call over the first `tokens` of the batch."""
        self._batch.n_tokens = tokens
        status = self._api.llama_decode(self._context, self._batch)
        if status != 0:
            raise UsageError(f"llama.cpp failed on a pass of {tokens} rows (status {status}); give a longer context.")
        self._api.llama_synchronize(self._context)


class LlamaCpp(Opened):
    """llama.cpp on one text."""

    def __init__(self, path: Path, *, threads: int, context: int, batch: int = 512) -> None:
        super().__init__(path, threads=threads, context=context, batch=batch, rows=batch)
        self._length = 0

    def read(self, tokens: Sequence[int]) -> None:
        self._api.llama_memory_clear(self._memory, True)
        self._length = 0
        for start in range(0, len(tokens), self._size):
            chunk = tokens[start : start + self._size]
            self._decode(chunk, logits=False)
            self._length += len(chunk)

    def rows(self, tokens: Sequence[int]) -> None:
        self._decode(tokens, logits=True)
        self._api.llama_memory_seq_rm(self._memory, 0, self._length, -1)

    def score(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Read these tokens, at most a batch, after what was read; logits `[tokens, vocab]`."""
        self._decode(tokens, logits=True)
        self._length += len(tokens)
        values = self._api.llama_get_logits(self._context)
        return np.ctypeslib.as_array(values, (len(tokens), self.vocab)).copy()

    def _decode(self, tokens: Sequence[int], *, logits: bool) -> None:
        for index, token in enumerate(tokens):
            self._put(index, token, self._length + index, 0, logits)
        self._run(len(tokens))
