"""The talk of ``edgedec chat``: messages, answers and the commands that begin with a slash."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from edgedec.cli._message_input import MessageInput
from edgedec.cli.console import counted, note, progress, write
from edgedec.cli.generate import figures, text_writer
from edgedec.errors import DeviceError, EdgedecError, UsageError
from edgedec.host.spelling import did_you_mean

if TYPE_CHECKING:
    from edgedec.cli.run_options import TextOptions
    from edgedec.runtime.sampling.sampling import SamplingConfig
    from edgedec.runtime.session.answer import Answer
    from edgedec.runtime.session.conversation import Conversation

__all__ = ["Talk"]

_HELP = '''/reset        start a new conversation; the system message stays
/regen        write the last answer again, with the next seed
/system       show the system message
/system TEXT  set it, "" for none; the conversation goes on under it
/save FILE    write the conversation to a file
/load FILE    go on with the conversation of a file, in place of this one
/stats        show figures of the last answer, and the use of the context
/help         show this list
/exit         end the chat; so do Ctrl-D, and Ctrl-C twice at an empty prompt
A message of several lines begins and ends with """; pasted lines are one message.
Ctrl-C during an answer ends the answer; a second Ctrl-C ends the chat.'''
# Commands of other programs -> the command here.
_ELSEWHERE = {
    "/bye": "/exit",
    "/quit": "/exit",
    "/clear": "/reset",
    "/?": "/help",
    "/set": "/system",
    "/regenerate": "/regen",
}


class _Interrupts:
    """Handle Ctrl-C: the first one during an answer sets a flag, and any other raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.answering = self.flag = False
        self.typed = ""

    def handle(self, signum: int, frame: FrameType | None) -> None:
        if self.answering and not self.flag:
            self.flag = True
            return
        self.typed = _line_buffer()
        raise KeyboardInterrupt

    @contextmanager
    def installed(self) -> Iterator[None]:
        before = signal.getsignal(signal.SIGINT)
        if before is not signal.SIG_IGN:  # a background job of a shell ignores Ctrl-C, which is for another program
            signal.signal(signal.SIGINT, self.handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    @contextmanager
    def answer(self) -> Iterator[None]:
        self.flag, self.answering = False, True
        try:
            yield
        finally:
            self.answering = False


def _line_buffer() -> str:
    """Return the text after the prompt; empty if Python was built without readline."""
    readline = sys.modules.get("readline")
    return readline.get_line_buffer() if readline else ""


def _end_line(prompt: str) -> None:
    """End the line on the terminal that begins with the prompt sign, if there is one."""
    if prompt and sys.stdout.isatty():
        write("\n")
    elif prompt:
        note("")


def _file_named(name: str) -> Path:
    """Return the path of a file as it was typed: ``~`` is a home folder, as in shells.

    Raises:
        UsageError: there is no such user, or no file can have such a name.
    """
    if "\0" in name:
        raise UsageError(f"{name!r}: no file can have such a name; leave out the character \\x00")
    try:
        return Path(name).expanduser()
    except RuntimeError:
        user = name.partition("/")[0].removeprefix("~")
        raise UsageError(f"{name}: there is no user {user!r}; give the path without ~") from None


class Talk:
    """The conversation. A message that fails does not become part of it."""

    def __init__(self, conversation: Conversation, writing: TextOptions, sampling: SamplingConfig) -> None:
        self.conversation, self.session = conversation, conversation.session
        self.options, self.sampling = writing, sampling
        self.interrupts = _Interrupts()
        self.failures: list[EdgedecError] = []
        self.answers = 0
        self._forget()

    def _forget(self) -> None:
        self.last: Answer | None = None
        self._warned = False
        self._again = 0  # times that the last answer was written again

    def turn(self, text: str, *, again: int = 0) -> None:
        """Send a message, and print the answer.

        Args:
            again: times that the message was answered before; the seed is so much higher, unless each answer has its own.

        Raises:
            EdgedecError: the template raises an error, or the conversation does not fit the context.
        """
        sampling = self.sampling if self.sampling.seed < 0 else replace(self.sampling, seed=self.sampling.seed + again)
        ids, dropped = self.conversation.ask(text)
        if dropped:
            self._warned = False
            self._note_dropped(dropped)
        writer = text_writer(show_draft=self.options.show_draft)
        with progress("reading the prompt", once=True) as report, writer as put:
            try:
                answer = self.session.generate(
                    ids,
                    n_predict=self.options.n_predict,
                    sampling=sampling,
                    stop=self.options.stop,
                    ignore_eos=self.options.ignore_eos,
                    dropped=self.conversation.dropped_tokens,
                    on_text=put,
                    interrupted=lambda: self.interrupts.flag,
                    progress=report,
                )
            except DeviceError:
                write("\n")  # the error message and the next answer begin on a new line
                raise
            write("\n")
        self.last = answer
        if answer.stop_reason == "interrupted" and not answer.text:
            stays = "the answer before stays" if again else "the message is not part of the conversation"
            note(f"stopped before the answer began; {stays}")
            return
        self.answers += 1
        self._again = again
        self.conversation.answered(text, answer.text, used=len(ids) + len(answer.tokens))
        self._warn(answer)

    def _note_dropped(self, dropped: int) -> None:
        size = self.conversation.size
        turns = "turn was" if dropped == 1 else f"{dropped} turns were"
        kept = counted(len(self.conversation.turns), "turn")
        kept += " and the system message" if self.conversation.system else ""
        note(f"the conversation exceeded the context of {size} tokens: its oldest {turns} dropped; kept: {kept}")

    def _warn(self, answer: Answer) -> None:
        used, size = self.conversation.used, self.conversation.size
        then = (
            "the next message drops the oldest turns"
            if self.conversation.shift
            else "a message that does not fit is refused"
        )
        if answer.stop_reason == "context":
            note(
                f"the context of {size} tokens is full, which ended the answer: {then}; /reset starts a new conversation"
            )
        elif self.conversation.nearly_full and not self._warned:
            share = 100 * used // size
            note(
                f"the conversation takes {used} of {size} tokens of context ({share} %): {then}; "
                "/reset starts a new conversation"
            )
        self._warned = self.conversation.nearly_full

    def _reset(self) -> None:
        self.conversation.reset()
        self._forget()
        note("new conversation")

    def _stats(self) -> None:
        print(self._figures(), flush=True)

    def _figures(self) -> str:
        if self.last is None:
            return "there is no answer yet"
        used, size = self.session.state.length, self.session.run.limits.positions
        dropped = self.conversation.dropped
        older = f", {counted(dropped, 'older turn')} dropped" if dropped else ""
        messages = counted(2 * len(self.conversation.turns) + bool(self.conversation.system), "message")
        return f"{figures(self.last)}\ncontext: {used} of {size} tokens, {messages}{older}"

    def _regen(self) -> None:
        if not self.conversation.turns:
            raise UsageError("there is no answer to write again")
        whole = self.last is None or self.last.stop_reason != "interrupted"
        if whole and self.last is not None and not self.sampling.temperature:
            raise UsageError("with --temp 0 the answer would be the same text, whatever the seed")
        with self.conversation.without_last() as message, self.interrupts.answer():
            self.turn(message, again=self._again + 1)

    def _system(self, text: str) -> None:
        if not text:
            note(f"system message: {self.conversation.system}" if self.conversation.system else "no system message")
            return
        self.conversation.go_on(system=None if text == '""' else text, turns=self.conversation.turns)
        turns = counted(len(self.conversation.turns), "turn")
        what = "without a system message" if self.conversation.system is None else "under this system message"
        note(f"the conversation of {turns} goes on {what}; /reset starts a new one")

    def _save(self, name: str) -> None:
        from edgedec.cli._conversation_file import SavedConversation, save_conversation

        if not self.conversation.turns:
            raise UsageError("there is nothing to save: the conversation has no answer yet")
        saved = SavedConversation(
            model=self.session.bundle.sha256, system=self.conversation.system, turns=tuple(self.conversation.turns)
        )
        save_conversation(_file_named(name), saved)
        dropped = self.conversation.dropped
        without = f", without {counted(dropped, 'older turn')} that the context dropped" if dropped else ""
        note(f"{counted(len(saved.turns), 'turn')} saved to {name}{without}")

    def _load(self, name: str) -> None:
        from edgedec.cli._conversation_file import load_conversation

        saved = load_conversation(_file_named(name))
        self.conversation.go_on(system=saved.system, turns=saved.turns)
        self._forget()
        other = "" if saved.model == self.session.bundle.sha256 else "; another model has written the answers"
        system = " and the system message" if saved.system is not None else ""
        note(f"{counted(len(saved.turns), 'turn')}{system} loaded from {name}{other}")

    def command(self, line: str) -> bool:
        """Run a command, a line that begins with a slash; return False to end the chat.

        Raises:
            EdgedecError: the command is refused; the conversation is unchanged.
        """
        name, _, argument = line.partition(" ")
        plain: dict[str, Callable[[], None]] = {
            "/reset": self._reset,
            "/regen": self._regen,
            "/stats": self._stats,
            "/help": lambda: print(_HELP, flush=True),
        }
        with_file: dict[str, Callable[[str], None]] = {"/save": self._save, "/load": self._load}
        known = [*plain, *with_file, "/system", "/exit"]
        argument = argument.strip()
        if name not in known:
            meant = f"; did you mean {_ELSEWHERE[name]!r}?" if name in _ELSEWHERE else did_you_mean(name, known)
            raise UsageError(f"there is no command {name}{meant or '; /help lists them'}")
        if argument and (name in plain or name == "/exit"):
            raise UsageError(f"{name} takes nothing after it, not {argument!r}; /help lists the commands")
        if name in plain:
            plain[name]()
        elif name == "/system":
            self._system(argument)
        elif name != "/exit" and not argument:
            raise UsageError(f"{name} needs the name of a file: {name} FILE")
        elif name != "/exit":
            with_file[name](argument)
        return name != "/exit"

    def run(self, prompt: str, *, first: str | None = None, single: bool = False) -> None:
        """Read messages until the end of the input.

        Args:
            prompt: sign before each message; empty: stdin is a file or a pipe.
            first: a message before all that are read.
            single: end after the first message.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed twice at the prompt, twice during an answer, or once without a prompt.
        """
        lines, leaving = MessageInput(prompt), False
        if first is not None:
            self._send(first)
            if single:
                return
        with lines.on_terminal():
            while True:
                try:
                    typed = lines.read()
                except EOFError:
                    _end_line(prompt)
                    return
                except KeyboardInterrupt:
                    _end_line(prompt)
                    if not prompt or (leaving and not self.interrupts.typed and not lines.unfinished):
                        raise
                    leaving = True
                    note("press Ctrl-C again, or Ctrl-D, to end the chat")
                    continue
                leaving = False
                if typed.is_command and not self._obey(typed.text):
                    return
                if not typed.is_command and typed.text:
                    self._send(typed.text)
                    if single:
                        return

    def _obey(self, line: str) -> bool:
        try:
            return self.command(line)
        except EdgedecError as error:
            note(f"edgedec: {error}" if not isinstance(error, UsageError) else str(error))
            return True

    def _send(self, text: str) -> None:
        try:
            with self.interrupts.answer():
                self.turn(text)
        except EdgedecError as error:
            self.failures.append(error)
            note(f"edgedec: {error}\nthe message is not part of the conversation; /reset starts a new one")
