"""What can be said to a chat itself: lines that begin with a slash. They are never sent to the model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forerun.cli.files import reading
from forerun.cli.json_text import dump, parse
from forerun.cli.output import complain, note, reason
from forerun.errors import ForerunError, UsageError, unknown

if TYPE_CHECKING:
    from forerun.cli.conversation import Conversation

HELP = '''\
/help            these lines
/set NAME VALUE  a sampling parameter, such as temperature 0.8; /set shows all
/system TEXT     the system message from now on; without TEXT none
/retry           answer the last message once more
/save FILE       write the conversation to a new file; /save! may write over one
/load FILE       go on with a conversation that was saved
/stats           what was written so far, and what speculation did for it
/reset           start a new conversation
/exit            leave (so does Ctrl-D)
Ctrl-C stops an answer. A paste is one message. Esc Enter makes a new line, and
so does Enter between """ and """. A message that begins with a slash goes with
a space in front. All else is said to the model.'''


def obey(conversation: Conversation, line: str) -> bool:
    """Do what a line says, and tell what is wrong with it otherwise. False to leave the chat."""
    name, rest = (*line.split(None, 1), "")[:2]
    if name == "/exit":
        return False
    command = _COMMANDS.get(name)
    if command is None:
        complain(f"there is no command {name[:40]}; /help lists them. A message goes with a space in front.")
        return True
    try:
        command(conversation, rest.strip())
    except ForerunError as error:
        complain(str(error))
    return True


def _help(_conversation: Conversation, _rest: str) -> None:
    note(HELP)


def _set(conversation: Conversation, rest: str) -> None:
    from forerun.cli.parameters import sampling_of
    from forerun.core.sampling import Sampling

    name, value = (*rest.split(None, 1), "", "")[:2]
    name = name.replace("-", "_")
    if not name:
        chosen = Sampling(**conversation.asked)
        note("\n".join(f"{name} {_shown(getattr(chosen, name))}" for name in Sampling.names()))
        return
    if name not in Sampling.names():
        raise unknown("parameter", name, Sampling.names())
    if not value:
        raise UsageError(f"/set {name} needs a value; none is what it was at the start.")
    asked = {key: given for key, given in conversation.asked.items() if key != name}
    if value.lower() == "none":
        asked |= {key: given for key, given in conversation.asked_at_first.items() if key == name}
    else:
        asked |= sampling_of({name: _value(name, value)})
    conversation.asked = asked
    note(f"({name} {_shown(getattr(Sampling(**asked), name))})")


def _value(name: str, text: str) -> Any:
    """A value as JSON has it, or else the text itself."""
    if name == "stop" and text[0] not in '["':
        return text
    try:
        return parse(text)
    except ValueError:
        return text


def _shown(value: Any) -> str:
    return "none" if value is None else dump(dict(value) if hasattr(value, "keys") else value)


def _system(conversation: Conversation, rest: str) -> None:
    conversation.system = rest or None
    note("(a system message is in front)" if rest else "(no system message)")


def _retry(conversation: Conversation, _rest: str) -> None:
    messages = conversation.messages
    while messages and messages[-1].get("role") != "user":
        messages.pop()
    if not messages:
        raise UsageError("there is nothing to answer once more; say something first.")
    conversation.answer(messages.pop())


def _save(conversation: Conversation, rest: str, mode: str = "x") -> None:
    path = _path(rest, "/save")
    if not conversation.messages:
        raise UsageError("there is nothing to save yet; say something first.")
    system = [] if conversation.system is None else [{"role": "system", "content": conversation.system}]
    text = dump({"model": conversation.llm.assembly.model, "messages": [*system, *conversation.messages]})
    try:
        with open(path, mode, encoding="utf-8") as file:
            file.write(text + "\n")
    except FileExistsError:
        raise UsageError(f"{path} is there already; /save! {path} writes over it.") from None
    except OSError as error:
        raise UsageError(f"cannot write {path}: {reason(error)}; choose another file.") from error
    note(f"(saved in {path})")


def _save_over(conversation: Conversation, rest: str) -> None:
    _save(conversation, rest, "w")


def _load(conversation: Conversation, rest: str) -> None:
    from forerun.text.messages import normalized

    path = _path(rest, "/load")
    with reading(path):
        text = path.read_bytes().decode("utf-8-sig")
    try:
        saved = parse(text)
    except ValueError as error:
        raise UsageError(f"{path} is not a saved conversation: not JSON ({error}).") from error
    messages = saved.get("messages") if isinstance(saved, dict) else saved
    if not isinstance(messages, list):
        raise UsageError(f'{path} is not a saved conversation: it has no list of "messages".')
    messages = normalized(messages)
    first = messages[0]["role"] == "system"
    conversation.system = messages.pop(0)["content"] if first else None
    conversation.messages = messages
    note(f"({len(messages)} messages from {path})")


def _path(rest: str, command: str) -> Path:
    if not rest:
        raise UsageError(f"{command} needs the name of a file.")
    return Path(rest).expanduser()


def _stats(conversation: Conversation, _rest: str) -> None:
    from forerun.cli.summary import count, speculation

    last, stats = conversation.last, conversation.stats
    if last is None:
        raise UsageError("there is no answer yet; say something first.")
    held = last.usage.prompt_tokens + last.usage.completion_tokens
    note(
        f"{count(conversation.answers, 'answer')} of {count(stats.tokens, 'token')} in {conversation.seconds:.1f} s, "
        f"{speculation(stats, last.draft)}; the conversation has {count(held, 'token')}, "
        f"the model holds {conversation.llm.assembly.engine.target.info.context:,}"
    )


def _reset(conversation: Conversation, _rest: str) -> None:
    conversation.messages.clear()
    note("(a new conversation)")


_COMMANDS: dict[str, Callable[[Conversation, str], None]] = {
    "/help": _help,
    "/set": _set,
    "/system": _system,
    "/retry": _retry,
    "/save": _save,
    "/save!": _save_over,
    "/load": _load,
    "/stats": _stats,
    "/reset": _reset,
}
