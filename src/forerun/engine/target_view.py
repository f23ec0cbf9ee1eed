"""What a verifier sees of the target at each node of one draft: the one `choose`, at the true prefix."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from forerun.core import choosing
from forerun.core.draft import Draft
from forerun.core.model import ForwardOutput
from forerun.core.scratch import Scratch
from forerun.core.transcript import Transcript


class TargetView:
    """See core.protocols.Target.

    rows: `[1 + nodes, vocab]` logits. usable: ids at or past it are padding. scratch: lends arrays for this step only.
    output, index: the pass and which of its inputs this is, for rules that look at how rows came about.
    """

    def __init__(
        self,
        transcript: Transcript,
        draft: Draft,
        rows: NDArray[np.float32],
        usable: int,
        scratch: Scratch | None = None,
        *,
        output: ForwardOutput | None = None,
        index: int = 0,
    ) -> None:
        self._transcript, self._draft, self._rows = transcript, draft, rows
        self._usable = usable
        self._scratch = scratch or Scratch()
        self._probs: dict[int, NDArray[np.float64]] = {}
        self._untruncated: dict[int, NDArray[np.float64]] = {}
        self.output, self.index = output, index

    def probs(self, node: int) -> NDArray[np.float64]:
        if node not in self._probs:
            self._probs[node] = self._made(choosing.probs, node)
        return self._probs[node]

    def untruncated(self, node: int) -> NDArray[np.float64]:
        """`p` `[vocab]` at temperature 1 and without truncation, whatever is sampled (choosing.untruncated_probs)."""
        if node not in self._untruncated:
            asked = self._transcript.request.sampling
            as_sampled = asked.temperature == 1.0 and not asked.truncates
            made = self.probs(node) if as_sampled else self._made(choosing.untruncated_probs, node)
            self._untruncated[node] = made
        return self._untruncated[node]

    def choose(self, node: int) -> int:
        transcript = self._transcript
        return choosing.choose(
            self._rows[1 + node],
            self._prefix(node),
            transcript.request.sampling,
            self._usable,
            transcript.token_stream,
        )

    def logprobs(self, node: int, token: int, top: int) -> choosing.TokenLogprob:
        """Of a token after `node`, under the model's own distribution, with the `top` most likely ones."""
        return choosing.logprobs(self._rows[1 + node], token, top, self._usable)

    def _made(self, make: Callable[..., NDArray[np.float64]], node: int) -> NDArray[np.float64]:
        row = self._rows[1 + node]
        asked = self._transcript.request.sampling
        return make(row, self._prefix(node), asked, self._usable, out=self._scratch.array(len(row)))

    def _prefix(self, node: int) -> choosing.Prefix:
        return self._transcript.prefix([self._draft.tokens[n] for n in self._draft.path_to(node)])
