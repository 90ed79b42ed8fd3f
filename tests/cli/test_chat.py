"""``edgedec chat``: scripted through stdin, and by hand at a terminal of its own."""

from __future__ import annotations

import os
import pty
import re
import select
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgedec.runtime.session import Answer
from tests.cli.conftest import Edgedec, in_green
from tests.cli.known_model import ENDLESS

PATIENCE_S = 30.0

Ask = Callable[..., tuple[int, list[str], str]]


@pytest.fixture
def ask(edgedec: Edgedec, bundle: Path) -> Ask:
    """(exit code, lines on stdout, stderr) of a conversation."""

    def run(*lines: str, options: tuple[str, ...] = ()) -> tuple[int, list[str], str]:
        script = "".join(f"{line}\n" for line in lines)
        outcome = edgedec("chat", "-m", bundle, "--temp", "0", *options, stdin=script)
        return outcome.code, outcome.stdout.splitlines(), outcome.stderr

    return run


def test_answers_end_at_the_end_token(ask: Ask) -> None:
    assert ask("how?", "", "  and you?  ") == (0, ["Hi!", "Hi!"], "")


def test_the_conversation_is_the_next_prompt(ask: Ask) -> None:
    code, lines, _ = ask("how?", "/stats", "why?", "/stats", "/reset", "/stats", "how?", "/stats")
    assert code == 0
    first = len("[user]how?") + 1
    second = first + len("[assistant]Hi!") + len("[user]why?")
    prompts = [re.match(r"prompt: (\d+) tokens", line) for line in lines]
    assert [int(match[1]) for match in prompts if match] == [first, second, first]
    assert f"context: {second + 3} of 2048 tokens, 4 messages" in lines
    assert lines[lines.index("nothing was said yet") + 1] == "Hi!"


def test_system_message_outlives_reset(ask: Ask) -> None:
    _, lines, _ = ask("/reset", "how?", "/stats", options=("--system", "Be kind."))
    assert lines[1].startswith(f"prompt: {len('[system]Be kind.[user]how?') + 1} tokens")


def test_commands(ask: Ask) -> None:
    code, lines, stderr = ask("/help", "/nonsense", "/exit", "how?")
    assert code == 0
    assert [line.split()[0] for line in lines[:4]] == ["/reset", "/stats", "/help", "/exit"]
    assert "there is no command /nonsense; /help lists them" in stderr
    assert "Hi!" not in lines, "what comes after /exit is not read"


def test_a_conversation_past_the_context_is_refused_and_goes_on(ask: Ask) -> None:
    code, lines, stderr = ask("how?", "x" * 100 + "?", "/reset", "how?", options=("-c", "48"))
    assert (code, lines) == (0, ["Hi!", "Hi!"])
    assert re.search(r"edgedec: the prompt has \d+ tokens, the context holds 48: .*\n.*/reset begins anew", stderr)


def test_an_answer_that_fills_the_context_says_so(ask: Ask) -> None:
    _, lines, stderr = ask("o", "/stats", options=("-c", "48"))
    assert "the context of 48 tokens is full; /reset begins anew" in stderr
    assert "context: 48 of 48 tokens, 2 messages" in lines


def test_what_the_template_refuses_is_forgotten(ask: Ask) -> None:
    _, lines, stderr = ask("refuse", "how?", "/stats")
    assert "the chat template refused the conversation: no such talk" in stderr
    assert lines[0] == "Hi!"
    assert "2 messages" in lines[2]


def test_a_line_that_is_not_utf8_is_refused_and_forgotten(edgedec: Edgedec, bundle: Path) -> None:
    outcome = edgedec("chat", "-m", bundle, "--temp", "0", stdin="n\udce9?\nhow?\n")
    assert (outcome.code, outcome.stdout) == (0, "Hi!\n")
    assert "the text is not valid Unicode" in outcome.stderr


@pytest.mark.parametrize(("option", "answer"), [(("-n", "6"), "é€"), (("-r", "😀"), "é€")])
def test_limits_of_an_answer(ask: Ask, option: tuple[str, ...], answer: str) -> None:
    assert ask("o", options=option)[1] == [answer]


@pytest.mark.usefixtures("colours")
def test_show_draft_colours_accepted_guesses_only(ask: Ask, bundle: Path, answers: list[Answer]) -> None:
    options = ("--spec-type", "ngram", "-n", "66")
    _, lines, stderr = ask("o", "o", "/stats", options=(*options, "--show-draft"))
    assert lines[:2] == [in_green(bundle, answer) for answer in answers]
    assert any("\x1b[32m" in line for line in lines[:2])
    assert "\x1b[32m" not in lines[2]
    assert "; drafter ngram: " in lines[2]
    assert stderr == ""
    assert ask("o", options=options)[1] == [ENDLESS * 6]


def test_speculation_changes_no_conversation(ask: Ask) -> None:
    script = ("how?", "o", "why?")
    plain = ask(*script, options=("-n", "40"))
    assert ask(*script, options=("-n", "40", "--spec-type", "auto", "--show-draft")) == plain


def test_without_a_template(edgedec: Edgedec, mute_bundle: Path) -> None:
    outcome = edgedec("chat", "-m", mute_bundle, stdin="hello\n")
    assert outcome.code == 2
    assert "no chat template; use `edgedec generate`" in outcome.stderr


class Terminal:
    """A command on a terminal of its own, where Ctrl-C is a key."""

    def __init__(self, *args: str) -> None:
        self.process, self._master = pty.fork()
        if self.process == 0:
            os.execvpe(sys.executable, [sys.executable, *args], os.environ | {"TERM": "dumb", "PYTHONUTF8": "1"})
        self._seen = b""

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def expect(self, text: str) -> None:
        """Read until ``text`` has come; forget what came up to its end."""
        end = time.monotonic() + PATIENCE_S
        while text.encode() not in self._seen:
            ready, _, _ = select.select([self._master], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"{text!r} did not come, but: {self._seen[-500:]!r}"
            self._seen += self._read()
        self._seen = self._seen.partition(text.encode())[2]

    def _read(self) -> bytes:
        try:
            return os.read(self._master, 4096)
        except OSError:  # Linux' way to say that the other side is closed
            pytest.fail(f"the command ended; last seen: {self._seen[-500:]!r}")

    def exit_code(self) -> int:
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            done, status = os.waitpid(self.process, os.WNOHANG)
            if done:
                self.process = 0
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        pytest.fail("the command did not end")

    def close(self) -> None:
        os.close(self._master)  # hangs up
        if self.process:
            os.waitpid(self.process, 0)


@pytest.fixture
def terminal(bundle: Path) -> Iterator[Terminal]:
    opened = Terminal("-m", "edgedec", "chat", "-m", str(bundle), "--temp", "0")
    opened.expect("/help lists the commands")
    opened.expect("> ")
    yield opened
    opened.close()


CTRL_C, CTRL_D = "\x03", "\x04"


def test_ctrl_c_ends_the_answer_and_keeps_the_session(terminal: Terminal) -> None:
    terminal.type("o\n")
    terminal.expect("😀 oé€😀")
    terminal.type(CTRL_C)
    terminal.expect("\n> ")
    terminal.type("/stats\n")
    terminal.expect("ended by: interrupted")
    terminal.expect("2 messages")
    terminal.type("how?\n")
    terminal.expect("Hi!")
    terminal.expect("> ")
    terminal.type("half a line")
    terminal.expect("half a line")  # echoed, so it was read: Ctrl-C drops what was not
    # CPython sees a signal that comes between the echo and its next select() only with the next key: no person is so fast.
    time.sleep(0.3)
    terminal.type(CTRL_C)
    terminal.expect("> ")
    terminal.type("and?\n")
    terminal.expect("Hi!")
    terminal.expect("> ")
    time.sleep(0.3)
    terminal.type(CTRL_C)
    assert terminal.exit_code() == 0


def test_ctrl_d_ends_the_chat(terminal: Terminal) -> None:
    terminal.type(CTRL_D)
    assert terminal.exit_code() == 0
