"""`forerun chat`: a conversation in the terminal."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forerun.cli import options
from forerun.cli.output import Output, complain, note
from forerun.errors import UsageError

if TYPE_CHECKING:
    from forerun.llm import LLM

HELP = """/help   these lines
/reset  start a new conversation
/exit   leave (so does Ctrl-D)
Ctrl-C stops an answer. Everything else is said to the model."""


def chat(
    command: typer.Context,
    model: options.Model = None,
    draft: options.Draft = "auto",
    max_tokens: options.MaxTokens = 512,
    temperature: options.Temperature = 0.0,
    top_p: options.TopP = 1.0,
    top_k: options.TopK = 0,
    min_p: options.MinP = 0.0,
    seed: options.Seed = None,
    repetition_penalty: options.RepetitionPenalty = 1.0,
    presence_penalty: options.PresencePenalty = 0.0,
    frequency_penalty: options.FrequencyPenalty = 0.0,
    logit_bias: options.LogitBias = None,
    stop: options.Stop = None,
    stop_token_id: options.StopTokenId = None,
    system: options.System = None,
    backend: options.Backend = "auto",
    threads: options.Threads = None,
    context: options.Context = None,
    kv_dtype: options.KVDtype = None,
    quantize: options.Quantize = None,
    verifier: options.Verifier = "keyed",
    cascade: options.Cascade = None,
    controller: options.Controller = "auto",
    memory: options.Memory = None,
    remember: options.Remember = "matrix",
    num_speculative_tokens: options.SpeculativeTokens = None,
    speculative_config: options.SpeculativeConfig = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No summary line after each answer.")] = False,
    color: options.Color = False,
) -> int:
    """Talk with a model. The conversation is kept; /help lists what else there is."""
    asked = options.sampling(command.params)
    with options.load(command.params) as llm, Output(color=color) as out:
        if llm.assembly.template is None:
            raise UsageError(f"{llm.assembly.model} has no chat template (it is a base model); use forerun generate.")
        Conversation(llm, system, asked, out, quiet).run()
    return 0


class Conversation:
    """Messages so far, and the loop that adds to them until the user leaves."""

    def __init__(self, llm: LLM, system: str | None, asked: dict[str, Any], out: Output, quiet: bool) -> None:
        self._llm = llm
        self._system = system
        self._asked = asked
        self._out = out
        self._quiet = quiet
        self._messages: list[dict[str, str]] = []

    def run(self) -> None:
        """Ask, answer, again. Ends at /exit or at the end of input."""
        prompt = ""
        if sys.stdin.isatty():
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401  (line editing and history for input())
            note(f"{self._llm.assembly.model}, drafting with {self._llm.assembly.draft}. /help for help.")
            prompt = "> "
        while True:
            try:
                line = input(prompt).strip()
            except EOFError:
                return
            except KeyboardInterrupt:
                note("\n(/exit or Ctrl-D to leave)")
                continue
            if line == "/exit":
                return
            if line:
                self._take(line)

    def _take(self, line: str) -> None:
        if line == "/help":
            note(HELP)
        elif line == "/reset":
            self._messages.clear()
            note("(a new conversation)")
        elif line.startswith("/") and line[1:].isalpha():
            note(f"there is no command {line}; /help lists them.")
        else:
            self._answer(line)

    def _answer(self, line: str) -> None:
        """One turn. What Ctrl-C left of an answer stays in the conversation; a turn that cannot be read does not."""
        from forerun.cli.showing import show
        from forerun.cli.summary import summarize

        self._messages.append({"role": "user", "content": line})
        try:
            stream = self._llm.stream(self._messages, system=self._system, **self._asked)
        except UsageError as error:
            self._messages.pop()
            complain(f"{error} (/reset starts a new conversation)")
            return
        completion = show(stream, self._out)
        self._messages.append({"role": "assistant", "content": completion.text})
        if completion.error is not None:
            complain(completion.error)
        elif not self._quiet:
            note(f"({summarize(completion)})")
