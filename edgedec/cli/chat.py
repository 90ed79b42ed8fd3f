"""``edgedec chat``: talk with a model by its own chat template."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Annotated

from edgedec.cli.console import counted, note, progress
from edgedec.cli.generate import figures, note_narrowed, text_writer, write
from edgedec.cli.options import SanitizeControlTokens, Verbose, option
from edgedec.cli.run_options import RunOptions, TextOptions, command_line
from edgedec.errors import DeviceError, EdgedecError, UsageError

if TYPE_CHECKING:
    from edgedec.runtime.answer import Answer
    from edgedec.runtime.conversation import Conversation
    from edgedec.runtime.sampling import SamplingConfig
    from edgedec.runtime.session import Session

__all__ = ["chat"]

_HELP = """/reset  start a new conversation
/stats  show figures of the last answer, and the use of the context
/help   show this list
/exit   end the chat; so do Ctrl-D, and Ctrl-C twice at an empty prompt
Ctrl-C during an answer ends the answer; a second Ctrl-C ends the chat."""


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


def _read_line(prompt: str) -> str:
    """Return a line of stdin. The prompt sign goes to a terminal only, and never into a file that keeps the answers."""
    if sys.stdout.isatty():
        return input(prompt)
    sys.stderr.write(prompt)
    sys.stderr.flush()
    return input()


def _end_line(prompt: str) -> None:
    """End the line on the terminal that begins with the prompt sign, if there is one."""
    if prompt and sys.stdout.isatty():
        write("\n")
    elif prompt:
        note("")


class _Chat:
    """The conversation. A message that fails does not become part of it."""

    def __init__(self, conversation: Conversation, writing: TextOptions, sampling: SamplingConfig) -> None:
        self.conversation, self.session = conversation, conversation.session
        self.options, self.sampling = writing, sampling
        self._write = text_writer(show_draft=writing.show_draft)
        self.interrupts = _Interrupts()
        self.failures: list[EdgedecError] = []
        self.answers = 0
        self.reset()

    def reset(self) -> None:
        self.conversation.reset()
        self.last: Answer | None = None
        self._warned = False

    def turn(self, text: str) -> None:
        """Send a message, and print the answer.

        Raises:
            EdgedecError: the template raises an error, or the conversation does not fit the context.
        """
        ids, dropped = self.conversation.ask(text)
        if dropped:
            self._warned = False
            self._note_dropped(dropped)
        try:
            with progress("reading the prompt", once=True) as report:
                answer = self.session.generate(
                    ids,
                    n_predict=self.options.n_predict,
                    sampling=self.sampling,
                    stop=self.options.stop,
                    ignore_eos=self.options.ignore_eos,
                    dropped=self.conversation.dropped_tokens,
                    on_text=self._write,
                    interrupted=lambda: self.interrupts.flag,
                    progress=report,
                )
        except DeviceError:
            write("\n")  # the error message and the next answer begin on a new line
            raise
        write("\n")
        self.last = answer
        if answer.stop_reason == "interrupted" and not answer.text:
            note("stopped before the answer began; the message is not part of the conversation")
            return
        self.answers += 1
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

    def stats(self) -> str:
        if self.last is None:
            return "there is no answer yet"
        used, size = self.session.state.length, self.session.run.limits.positions
        dropped = self.conversation.dropped
        older = f", {counted(dropped, 'older turn')} dropped" if dropped else ""
        messages = counted(2 * len(self.conversation.turns) + bool(self.conversation.system), "message")
        return f"{figures(self.last)}\ncontext: {used} of {size} tokens, {messages}{older}"

    def command(self, line: str) -> bool:
        """Run a command, a line that begins with a slash; return False to end the chat."""
        if line == "/exit":
            return False
        if line == "/reset":
            self.reset()
            note("new conversation")
        elif line == "/stats":
            print(self.stats(), flush=True)
        elif line == "/help":
            print(_HELP, flush=True)
        else:
            note(f"there is no command {line}; /help lists them")
        return True

    def run(self, prompt: str) -> None:
        """Read lines until the end of the input.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed twice at the prompt, twice during an answer, or once without a prompt.
        """
        leaving = False
        while True:
            try:
                line = _read_line(prompt).strip()
            except EOFError:
                _end_line(prompt)
                return
            except KeyboardInterrupt:
                _end_line(prompt)
                if not prompt or (leaving and not self.interrupts.typed):
                    raise
                leaving = True
                note("press Ctrl-C again, or Ctrl-D, to end the chat")
                continue
            leaving = False
            if line.startswith("/"):
                if not self.command(line):
                    return
            elif line:
                try:
                    with self.interrupts.answer():
                        self.turn(line)
                except EdgedecError as error:
                    self.failures.append(error)
                    note(f"edgedec: {error}\nthe message is not part of the conversation; /reset starts a new one")


def _conversation(session: Session, system: str | None, *, shift: bool, sanitize: bool) -> Conversation:
    """Return a new conversation.

    Raises:
        UsageError: the model's template refuses the system message, which it would do with every message.
    """
    from edgedec.runtime.conversation import Conversation

    conversation = Conversation(session, system=system, shift=shift, sanitize=sanitize)
    try:
        conversation.check_system()
    except EdgedecError as error:
        raise UsageError(f"--system: {error}; leave --system out, or say it in the first message") from error
    return conversation


@command_line
def chat(
    run: RunOptions,
    writing: TextOptions,
    system: Annotated[
        str | None, option("--system", metavar="TEXT", help="System message of the conversation.")
    ] = None,
    no_context_shift: Annotated[
        bool,
        option(
            "--no-context-shift",
            help="Refuse messages that do not fit the context, instead of dropping the oldest turns.",
        ),
    ] = False,
    sanitize_control_tokens: SanitizeControlTokens = True,
    verbose: Verbose = 0,
) -> None:
    """Talk with a model.

    Lines that begin with a slash are commands; /help lists them.
    """
    sampling, spec = writing.sampling(), run.spec()
    session = run.open_session(spec, run.find_budget())
    with session:
        note_narrowed(session, spec)
        conversation = _conversation(session, system, shift=not no_context_shift, sanitize=sanitize_control_tokens)
        talk = _Chat(conversation, writing, sampling)
        if hasattr(sys.stdin, "reconfigure"):
            sys.stdin.reconfigure(errors="surrogateescape")  # the tokenizer reports what is wrong with such a line
        if talk.conversation.is_plain:
            note(
                f"{run.model}: the model has no chat template; messages and answers are lines of one plain text, which the "
                "model continues"
            )
        interactive = sys.stdin.isatty()
        if interactive:
            import readline  # noqa: F401  # line editing for input()

            note(f"context {session.run.limits.positions} tokens; /help lists the commands")
        with talk.interrupts.installed():
            talk.run("> " if interactive else "")
        if talk.failures and not talk.answers and not interactive:
            last = talk.failures[-1]
            raise type(last)("no message was answered; the reasons are in the lines above") from last
