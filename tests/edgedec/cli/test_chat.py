"""Test ``edgedec chat``: scripted through stdin, and with keys on a pseudo-terminal."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edgedec.bundle.embedded import ABOUT, EMBEDDED
from edgedec.errors import DeviceError
from edgedec.runtime.protocols import I32
from edgedec.runtime.session.answer import Answer, Piece
from edgedec.runtime.session.session import Session
from tests.edgedec.cli.conftest import Edgedec, in_green
from tests.edgedec.cli.support.make_known_model import ENDLESS
from tests.edgedec.cli.support.pseudo_terminal import PseudoTerminal as Terminal
from tests.support.gpu_here import need_gpu

chat_module = importlib.import_module("edgedec.cli.chat")  # the package has a function of this name, too

Ask = Callable[..., tuple[int, list[str], str]]


@pytest.fixture
def ask(edgedec: Edgedec, bundle: Path) -> Ask:
    """Return a function that holds a conversation: (exit code, lines on stdout, stderr)."""

    def run(*lines: str, options: tuple[str, ...] = ()) -> tuple[int, list[str], str]:
        script = "".join(f"{line}\n" for line in lines)
        outcome = edgedec("chat", "-m", bundle, "--temp", "0", *options, stdin=script)
        return outcome.code, outcome.stdout.splitlines(), outcome.stderr

    return run


def test_answers_end_at_the_end_token(ask: Ask) -> None:
    assert ask("how?", "", "  and you?  ") == (0, ["Hi!", "Hi!"], "")


def test_the_conversation_is_part_of_the_next_prompt(ask: Ask) -> None:
    code, lines, _ = ask("how?", "/stats", "why?", "/stats", "/reset", "/stats", "how?", "/stats")
    assert code == 0
    first = len("[user]how?") + 1
    second = first + len("[assistant]Hi!") + len("[user]why?")
    prompts = [re.match(r"prompt: (\d+) tokens", line) for line in lines]
    assert [int(match[1]) for match in prompts if match] == [first, second, first]
    assert f"context: {second + 3} of 2048 tokens, 4 messages" in lines
    assert lines[lines.index("there is no answer yet") + 1] == "Hi!"


@pytest.mark.thorough
def test_an_embedded_model_says_first_what_it_is(
    edgedec: Edgedec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    outcome = edgedec("chat", "-m", "demo", "--temp", "0", stdin="Who are you?\n")
    assert outcome.stderr.splitlines()[0] == (
        "demo: a story model of 7.9 M parameters that tells stories for children and answers simple questions about them; "
        "it is not a general assistant and does no arithmetic"
    )
    assert outcome.stdout == "I am a small model that tells stories.\n"
    assert set(ABOUT) == set(EMBEDDED)


def test_system_message_outlives_reset(ask: Ask) -> None:
    _, lines, _ = ask("/reset", "how?", "/stats", options=("--system", "Be kind."))
    assert lines[1].startswith(f"prompt: {len('[system]Be kind.[user]how?') + 1} tokens")


def test_commands_begin_with_a_slash(ask: Ask) -> None:
    code, lines, stderr = ask("/help", "/nonsense", "/exit", "how?")
    assert code == 0
    listed = ["/reset", "/regen", "/system", "/system", "/save", "/load", "/stats", "/help", "/exit"]
    assert [line.split()[0] for line in lines[:9]] == listed
    assert "there is no command /nonsense; /help lists them" in stderr
    assert "Hi!" not in lines, "what comes after /exit is not read"


def test_a_message_past_the_context_is_refused_and_the_chat_goes_on(ask: Ask) -> None:
    code, lines, stderr = ask("how?", "x" * 100 + "?", "/stats", "why?", options=("-c", "48"))
    assert (code, [lines[0], lines[-1]]) == (0, ["Hi!", "Hi!"])
    assert "context: 14 of 48 tokens, 2 messages" in lines
    tokens = len("[user]?") + 100 + 1
    assert (
        f"edgedec: the message takes {tokens} tokens with the template's additions, the context holds 48 tokens"
        in stderr
    )
    assert "the message is not part of the conversation; /reset starts a new one" in stderr
    assert "dropped" not in stderr


def test_a_device_that_fails_during_an_answer_ends_its_line(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Session.generate

    def failing(session: Session, prompt: I32, **options: Any) -> Answer:
        monkeypatch.setattr(Session, "generate", whole)
        options["on_text"](Piece("half an ans", guessed=False))
        raise DeviceError("the board does not answer")

    monkeypatch.setattr(Session, "generate", failing)
    code, lines, stderr = ask("how?", "how?")
    assert (code, lines) == (0, ["half an ans", "Hi!"])
    assert "edgedec: the board does not answer" in stderr.splitlines()


@pytest.mark.thorough
def test_a_conversation_goes_on_after_its_gpu_was_lost(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message that was lost can be sent again, and the answer knows the turns before it."""
    need_gpu()
    from edgedec.runtime.gpu.executor import Executor

    whole, submissions = Executor.submit, list[int]()

    def submit(self: Executor, *arguments: Any) -> Any:
        submissions.append(0)
        if len(submissions) == lost_at:
            importlib.import_module("wgpu.backends.wgpu_native").lib.wgpuDeviceDestroy(self._device.raw._internal)
        return whole(self, *arguments)

    monkeypatch.setattr(Executor, "submit", submit)
    lost_at = 0
    options = ("--device", "gpu", "-c", "64")
    assert ask("how?", options=options)[:2] == (0, ["Hi!"])
    lost_at, submissions[:] = len(submissions) + 2, []  # the second pass of the second message
    code, lines, stderr = ask("how?", "why?", "why?", "/stats", options=options)
    assert code == 0
    assert [line for line in lines if line == "Hi!"] == ["Hi!", "Hi!"]
    assert lines[-1] == f"context: {len('[user]how?[assistant]Hi![user]why?') + 1 + 3} of 64 tokens, 4 messages"
    assert re.search(r"edgedec: device gpu: .* was lost at .*; send the text again", stderr)


@pytest.mark.thorough
def test_dropped_turns_are_reported_once_each_time(ask: Ask) -> None:
    """Compute the prompts: 22, 46 and then 70 of 60 tokens; at 80 % turns are dropped until half the context is free."""
    code, lines, stderr = ask(*["how?"] * 5, "/stats", options=("-c", "60", "--system", "kin"))
    assert (code, lines.count("Hi!")) == (0, 5)
    warning = (
        "the conversation takes 50 of 60 tokens of context (83 %): the next message drops the oldest turns; "
        "/reset starts a new conversation"
    )
    dropped = (
        "the conversation exceeded the context of 60 tokens: its oldest 2 turns were dropped; kept: 0 turns and the system "
        "message"
    )
    assert stderr.splitlines() == [warning, dropped, warning, dropped]
    assert lines[-2].startswith("prompt: 22 tokens")
    assert lines[-1] == "context: 25 of 60 tokens, 3 messages, 4 older turns dropped"


def test_without_a_context_shift_a_full_conversation_is_refused(ask: Ask) -> None:
    options = ("-c", "48", "--no-context-shift")
    code, lines, stderr = ask("how?", "how?", "how?", "/stats", "/reset", "how?", options=options)
    assert (code, lines.count("Hi!")) == (0, 3)
    assert any(line.endswith("tokens, 4 messages") for line in lines)
    assert stderr.splitlines()[:2] == [
        "the conversation takes 39 of 48 tokens of context (81 %): a message that does not fit is refused; "
        "/reset starts a new conversation",
        "edgedec: the conversation and this message take 59 tokens, the context holds 48 tokens; leave out "
        "--no-context-shift, so that the oldest turns are dropped, or raise --ctx-size",
    ]


def test_an_answer_that_fills_the_context_is_reported(ask: Ask) -> None:
    _, lines, stderr = ask("o", "/stats", "how?", options=("-c", "48"))
    assert "the context of 48 tokens is full, which ended the answer: the next message drops the oldest turns" in stderr
    assert "context: 48 of 48 tokens, 2 messages" in lines
    assert "its oldest turn was dropped; kept: 0 turns" in stderr
    assert lines[-1] == "Hi!"


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("lines", [("refuse", "refuse"), ("x" * 100,), ("/help", "refuse")])
def test_a_chat_whose_every_message_failed_is_an_error(ask: Ask, lines: tuple[str, ...]) -> None:
    code, _, stderr = ask(*lines, options=("-c", "48"))
    assert code == 1
    assert stderr.endswith("edgedec: no message was answered; the reasons are in the lines above\n")


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("lines", [(), ("/help",), ("refuse", "how?")])
def test_a_chat_without_failures_or_with_an_answer_is_no_error(ask: Ask, lines: tuple[str, ...]) -> None:
    assert ask(*lines)[0] == 0


def test_a_message_that_the_template_refuses_is_forgotten(ask: Ask) -> None:
    _, lines, stderr = ask("refuse", "how?", "/stats")
    assert "the chat template refused the conversation: no such talk" in stderr
    assert lines[0] == "Hi!"
    assert "2 messages" in lines[2]


def test_a_line_that_is_not_utf8_is_refused_and_forgotten(edgedec: Edgedec, bundle: Path) -> None:
    outcome = edgedec("chat", "-m", bundle, "--temp", "0", stdin="n\udce9?\nhow?\n")
    assert (outcome.code, outcome.stdout) == (0, "Hi!\n")
    assert "the text is not valid Unicode" in outcome.stderr


@pytest.mark.parametrize(("option", "answer"), [(("-n", "6"), "é€"), (("-r", "😀"), "é€")])
def test_an_answer_ends_at_its_limits(ask: Ask, option: tuple[str, ...], answer: str) -> None:
    assert ask("o", options=option)[1] == [answer]


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_speculation_does_not_change_a_conversation(ask: Ask) -> None:
    script = ("how?", "o", "why?")
    plain = ask(*script, options=("-n", "40"))
    assert ask(*script, options=("-n", "40", "--spec-type", "auto", "--show-draft")) == plain


@pytest.mark.thorough
def test_without_a_template_the_lines_are_one_text(edgedec: Edgedec, mute_bundle: Path) -> None:
    """Check that the model sees the lines and nothing else."""
    outcome = edgedec(
        "chat", "-m", mute_bundle, "--temp", "0", "-n", "3", "--system", "Be kind", stdin="how\nand\n/stats\n"
    )
    assert (outcome.code, outcome.stdout.count("\n\n\n")) == (0, 2), "a newline is followed by newlines"
    assert outcome.stderr == (
        f"{mute_bundle}: the model has no chat template; messages and answers are lines of one plain text, which the "
        "model continues\n"
    )
    tokens = len("Be kind\nhow\n\n\n\n\nand\n") + 1
    assert f"prompt: {tokens} tokens" in outcome.stdout


@pytest.fixture
def terminal(bundle: Path) -> Iterator[Terminal]:
    opened = Terminal("-m", "edgedec", "chat", "-m", str(bundle), "--temp", "0")
    opened.expect("/help lists the commands")
    opened.expect("> ")
    yield opened
    opened.close()


CTRL_C, CTRL_D = "\x03", "\x04"


@pytest.mark.thorough
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
    terminal.expect("half a line")  # the echo shows that it was read: Ctrl-C drops what was not
    terminal.settle()
    terminal.type(CTRL_C)
    terminal.expect("> ")
    terminal.type("and?\n")
    terminal.expect("Hi!")
    terminal.expect("> ")
    terminal.type("/stats\n")
    terminal.expect("6 messages")


def leave(terminal: Terminal) -> None:
    """Press Ctrl-C twice at an empty prompt."""
    terminal.expect("> ")
    for last in (False, True):
        terminal.settle()
        terminal.type(CTRL_C)
        if not last:
            terminal.expect("press Ctrl-C again, or Ctrl-D, to end the chat")
            terminal.expect("> ")
    assert terminal.exit_code() == 130


@pytest.mark.thorough
def test_ctrl_c_twice_at_the_prompt_ends_the_chat(terminal: Terminal) -> None:
    terminal.type("how?\n")
    terminal.expect("Hi!")
    terminal.expect("> ")
    terminal.settle()
    terminal.type(CTRL_C)
    terminal.expect("press Ctrl-C again, or Ctrl-D, to end the chat")
    terminal.expect("> ")
    terminal.type("/stats\n")  # a line between the two: the first Ctrl-C is forgotten, the conversation is not
    terminal.expect("2 messages")
    leave(terminal)


@pytest.mark.thorough
def test_ctrl_c_on_a_half_typed_line_does_not_leave(terminal: Terminal) -> None:
    terminal.settle()
    terminal.type(CTRL_C)
    terminal.expect("press Ctrl-C again, or Ctrl-D, to end the chat")
    terminal.expect("> ")
    terminal.type("half a line")
    terminal.expect("half a line")
    terminal.settle()
    terminal.type(CTRL_C)
    terminal.expect("> ")
    terminal.type("how?\n")
    terminal.expect("Hi!")


@pytest.mark.thorough
def test_ctrl_c_twice_during_an_answer_ends_the_chat(bundle: Path) -> None:
    """Block in the target, so that the first Ctrl-C is not handled before the second one."""
    terminal = Terminal("-c", SLOW, "chat", "-m", str(bundle), "--temp", "0")
    try:
        terminal.expect("> ")
        terminal.type("o\n")
        terminal.expect("a token comes")
        terminal.type(CTRL_C)
        terminal.expect("^C")
        terminal.settle()
        terminal.type(CTRL_C)
        assert terminal.exit_code() == 130
    finally:
        terminal.close()


SLOW = """
import sys, time
from edgedec.cli import app
from edgedec.runtime.text.stream import TextStream

def feed(stream, token):
    print("a token comes", flush=True)
    time.sleep(60)
    sys.exit("it was not interrupted")

TextStream.feed = feed
app.main()
"""


@pytest.mark.thorough
def test_ctrl_d_ends_the_chat(terminal: Terminal) -> None:
    terminal.type(CTRL_D)
    assert terminal.exit_code() == 0


@pytest.mark.thorough
def test_a_file_that_keeps_the_answers_gets_no_prompt_sign(bundle: Path, tmp_path: Path) -> None:
    """Redirect the answers as ``edgedec chat ... > answers`` does."""
    terminal = Terminal("-c", TO_FILE, str(tmp_path / "answers"), "chat", "-m", str(bundle), "--temp", "0")
    try:
        terminal.expect("> ")
        terminal.type("how?\n")
        terminal.expect("> ")
        terminal.type(CTRL_D)
        assert terminal.exit_code() == 0
    finally:
        terminal.close()
    assert (tmp_path / "answers").read_text() == "Hi!\n"


TO_FILE = """
import os, sys
os.dup2(os.open(sys.argv.pop(1), os.O_WRONLY | os.O_CREAT), 1)
from edgedec.cli import app
app.main()
"""


@pytest.mark.thorough
def test_an_ignored_ctrl_c_stays_ignored(bundle: Path) -> None:
    command = [sys.executable, "-c", SIGNALLED, "chat", "-m", str(bundle), "--temp", "0"]
    done = subprocess.run(
        ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command], input=b"how?\n", capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, b"Hi!\n"), done.stderr


SIGNALLED = """
import signal
from edgedec.cli import app
from edgedec.runtime.text.stream import TextStream

feed = TextStream.feed

def signalled(stream, token):
    signal.raise_signal(signal.SIGINT)
    return feed(stream, token)

TextStream.feed = signalled
app.main()
"""


def test_a_system_message_that_the_template_refuses_ends_the_chat_at_its_beginning(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, lines, said = ask("how?", options=("--system", "refuse"))
    assert (code, lines) == (2, [])
    assert said == (
        "edgedec: --system: the chat template refused the conversation: no such talk; leave --system out, or say it in the "
        "first message\n"
    )


def test_the_place_of_bad_unicode_counts_in_the_line(edgedec: Edgedec, bundle: Path) -> None:
    outcome = edgedec("chat", "-m", bundle, "--temp", "0", stdin="how?\nabc\udce9\n")
    assert outcome.stdout == "Hi!\n"
    assert "edgedec: the text is not valid Unicode at character 3; give it as UTF-8\n" in outcome.stderr


def test_one_token_is_one_token(ask: Ask) -> None:
    _, lines, _ = ask("how?", "/stats", options=("-n", "1"))
    assert "; answer: 1 token, " in lines[1]


def test_the_warning_of_a_nearly_full_context_comes_once(ask: Ask) -> None:
    code, lines, messages = ask("x" * 150 + "?", "?", options=("-c", "200", "--no-context-shift"))
    assert (code, lines) == (0, ["Hi!", "Hi!"])
    assert messages.count("tokens of context (") == 1
