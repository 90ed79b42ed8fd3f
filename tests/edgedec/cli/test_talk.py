"""Test the commands of ``edgedec chat``, its files of conversations, and messages of several lines."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgedec.cli import _message_input
from edgedec.cli._conversation_file import SavedConversation, load_conversation, save_conversation
from edgedec.cli._message_input import MessageInput, Typed
from edgedec.errors import EdgedecError, UsageError
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.answer import Answer
from edgedec.runtime.session.conversation import Turn
from edgedec.runtime.session.session import Session
from tests.edgedec.cli.conftest import Edgedec
from tests.edgedec.cli.support.pseudo_terminal import PseudoTerminal

Ask = Callable[..., tuple[int, list[str], str]]


@pytest.fixture
def ask(edgedec: Edgedec, bundle: Path) -> Ask:
    """Return a function that holds a conversation: (exit code, lines on stdout, stderr)."""

    def run(*lines: str, options: tuple[str, ...] = ("--temp", "0")) -> tuple[int, list[str], str]:
        outcome = edgedec("chat", bundle, *options, stdin="".join(f"{line}\n" for line in lines))
        return outcome.code, outcome.stdout.splitlines(), outcome.stderr

    return run


def prompts(lines: list[str]) -> list[int]:
    return [int(match[1]) for line in lines if (match := re.match(r"prompt: (\d+) tokens", line))]


FIRST = len("[user]how?") + 1


# Messages.


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Typed]]:
    """Return a function that reads all messages of some lines."""

    def read(*lines: str) -> list[Typed]:
        left = iter(lines)

        def line(prompt: str) -> str:
            try:
                return next(left)
            except StopIteration:
                raise EOFError from None

        monkeypatch.setattr(_message_input, "_read_line", line)
        messages, reader = [], MessageInput("> ")
        try:
            while True:
                messages.append(reader.read())
        except EOFError:
            return messages

    return read


@pytest.mark.parametrize(
    ("lines", "texts"),
    [
        (["a", "b"], ["a", "b"]),
        (['"""a', "b", '"""', "c"], ["a\nb", "c"]),
        (['"""', "a", "", " b", 'c"""', "d"], ["a\n\n b\nc", "d"]),
        (['"""a"""', "b"], ["a", "b"]),
        (['""""""', "b"], ["", "b"]),
        (['a """b', "c"], ['a """b', "c"]),
        (["\x1b[200~a", "b", "c\x1b[201~", "d"], ["a\nb\nc", "d"]),
        (["\x1b[200~a\x1b[201~ b", "c"], ["a b", "c"]),
        (['\x1b[200~"""a', 'b"""\x1b[201~', "c"], ["a\nb", "c"]),
        (["a\nb"], ["a\nb"]),
    ],
)
def test_messages_of_several_lines(typed: Callable[..., list[Typed]], lines: list[str], texts: list[str]) -> None:
    assert typed(*lines) == [Typed(text=text, is_command=False) for text in texts]


@pytest.mark.parametrize("lines", [["/a\nb"], ['"""/reset', '"""'], ["\x1b[200~/etc", "b\x1b[201~"]])
def test_a_message_of_several_lines_is_no_command(typed: Callable[..., list[Typed]], lines: list[str]) -> None:
    assert [one.is_command for one in typed(*lines)] == [False]
    assert typed(" /reset ") == [Typed(text="/reset", is_command=True)]


def test_a_message_without_its_closing_quotes_is_not_sent(ask: Ask) -> None:
    code, lines, stderr = ask("how?", '"""and', "you?")
    assert (code, lines) == (0, ["Hi!"])
    assert 'the input ended within a message: it was not sent, because its closing """ is missing' in stderr


def test_a_message_of_several_lines_is_one_message(ask: Ask) -> None:
    _, lines, _ = ask('"""', "how", "and?", '"""', "/stats")
    assert lines[0] == "Hi!"
    assert prompts(lines) == [len("[user]how\nand?") + 1]


@pytest.fixture
def terminal(bundle: Path) -> Iterator[PseudoTerminal]:
    opened = PseudoTerminal("-m", "edgedec", "chat", str(bundle), "--temp", "0", term="xterm")
    opened.expect("/help lists the commands")
    opened.expect("> ")
    yield opened
    opened.close()


def test_pasted_lines_are_one_message(terminal: PseudoTerminal) -> None:
    """The terminal is asked to mark pasted text, and its line ends send nothing."""
    terminal.type("\x1b[200~how\nand\n?\x1b[201~\r")
    terminal.expect("Hi!")
    terminal.expect("> ")
    terminal.type("/stats\r")
    terminal.expect(f"prompt: {len('[user]how_and_?') + 1} tokens")
    terminal.expect("2 messages")


@pytest.mark.thorough
def test_pasted_lines_are_one_message_without_a_line_editor(bundle: Path) -> None:
    program = "import sys; sys.modules['readline'] = None; from edgedec.cli import app; app.main()"
    terminal = PseudoTerminal("-c", program, "chat", str(bundle), "--temp", "0", term="xterm")
    try:
        terminal.expect("\x1b[?2004h")
        terminal.expect("> ")
        terminal.type("\x1b[200~how\nand?\x1b[201~\n")
        terminal.expect("Hi!")
        terminal.type("/stats\n")
        terminal.expect(f"prompt: {len('[user]how_and?') + 1} tokens")
        terminal.type("/exit\n")
        terminal.expect("\x1b[?2004l")
        assert terminal.exit_code() == 0
    finally:
        terminal.close()


@pytest.mark.thorough
def test_quotes_on_a_terminal_get_another_prompt_sign_and_ctrl_c_forgets_the_message(terminal: PseudoTerminal) -> None:
    terminal.type('"""how\r')
    terminal.expect("... ")
    terminal.settle()
    terminal.type("\x03")
    terminal.expect("> ")
    terminal.type('"""how\r')
    terminal.expect("... ")
    terminal.type('?"""\r')
    terminal.expect("Hi!")
    terminal.expect("> ")
    terminal.type("/stats\r")
    terminal.expect(f"prompt: {len('[user]how_?') + 1} tokens")


# The first message, and the end after it.


@pytest.mark.thorough
def test_the_first_message_may_be_an_option(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "message").write_text("how?\n")
    for source in (("-p", "how?"), ("-f", str(tmp_path / "message"))):
        code, lines, _ = ask("/stats", "how?", options=("--temp", "0", *source))
        assert (code, lines[0], lines[-1], prompts(lines)) == (0, "Hi!", "Hi!", [FIRST])
        assert ask("how?", options=("--temp", "0", "-st", *source)) == (0, ["Hi!"], "")
    assert ask(options=("-p", "x", "-f", "y"))[0] == 2


def test_a_single_turn_ends_after_the_first_message(ask: Ask) -> None:
    code, lines, _ = ask("/help", "how?", "how?", options=("--temp", "0", "--single-turn"))
    assert (code, lines.count("Hi!")) == (0, 1)
    code, _, stderr = ask("refuse", "how?", options=("--temp", "0", "-st"))
    assert code == 1
    assert "no message was answered" in stderr


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("~nosuchuser/x", "~nosuchuser/x: there is no user 'nosuchuser'; give the path without ~"),
        ("a\0b", "'a\\x00b': no file can have such a name"),
        ("x" * 5000, "x" * 5000),
    ],
)
def test_a_name_that_no_file_can_have_ends_nothing(ask: Ask, name: str, message: str) -> None:
    code, lines, stderr = ask("how?", f"/save {name}", "how?")
    assert (code, lines) == (0, ["Hi!", "Hi!"])
    assert message in stderr


@pytest.mark.thorough
def test_a_single_turn_that_is_refused_fails_on_a_terminal_too(bundle: Path) -> None:
    terminal = PseudoTerminal("-m", "edgedec", "chat", str(bundle), "-st", "-p", "refuse")
    try:
        assert "no message was answered" in terminal.rest()
        assert terminal.exit_code() == 1
    finally:
        terminal.close()


# Writing an answer again.


def seeds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the list to which each answer adds its seed."""
    used, real = list[int](), Session.generate

    def generate(session: Session, *arguments: Any, sampling: SamplingConfig, **options: Any) -> Answer:
        used.append(sampling.seed)
        return real(session, *arguments, sampling=sampling, **options)

    monkeypatch.setattr(Session, "generate", generate)
    return used


def test_regen_takes_the_next_seed(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    used = seeds(monkeypatch)
    options = ("--temp", "0.1", "-s", "7")
    code, lines, stderr = ask("how?", "/regen", "/regen", "and?", "/regen", "/stats", options=options)
    assert (code, used, stderr) == (0, [7, 8, 9, 7, 8], "")
    second = FIRST + len("[assistant]Hi!") + len("[user]and?")
    assert prompts(lines) == [second], "the turn before stays, and the answer that was replaced is forgotten"


def test_regen_with_a_seed_for_each_answer_takes_another_one(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    used = seeds(monkeypatch)
    assert ask("how?", "/regen", options=("--temp", "0.1"))[0] == 0
    assert used == [-1, -1]


def test_regen_says_when_it_cannot_change_anything(ask: Ask) -> None:
    _, lines, stderr = ask("/regen", "how?", "/regen", "/stats")
    assert lines.count("Hi!") == 1
    assert stderr.splitlines() == [
        "there is no answer to write again",
        "with --temp 0 the answer would be the same text, whatever the seed",
    ]
    assert "2 messages" in lines[-1]


def test_a_regen_that_fails_keeps_the_answer(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = Session.generate, list[int]()

    def generate(session: Session, *arguments: Any, **options: Any) -> Answer:
        calls.append(0)
        if len(calls) == 2:
            raise EdgedecError("no luck")
        return real(session, *arguments, **options)

    monkeypatch.setattr(Session, "generate", generate)
    code, lines, stderr = ask("how?", "/regen", "how?", "/stats", options=("--temp", "0.1", "-s", "1"))
    assert (code, lines[:2], stderr) == (0, ["Hi!", "Hi!"], "edgedec: no luck\n")
    assert prompts(lines) == [FIRST + len("[assistant]Hi!") + len("[user]how?")]


# The system message.


def test_a_system_message_holds_from_now_on(ask: Ask) -> None:
    _, lines, stderr = ask("/system", "how?", "/system Be kind.", "/system", "how?", "/stats", '/system ""', "/system")
    assert prompts(lines) == [len("[system]Be kind.[user]how?[assistant]Hi![user]how?") + 1]
    assert stderr.splitlines() == [
        "no system message",
        "the conversation of 1 turn goes on under this system message; /reset starts a new one",
        "system message: Be kind.",
        "the conversation of 2 turns goes on without a system message; /reset starts a new one",
        "no system message",
    ]


def test_a_system_message_that_the_template_refuses_changes_nothing(ask: Ask) -> None:
    _, lines, stderr = ask("how?", "/system refuse", "/system", "how?", "/stats")
    assert "no such talk" in stderr
    assert "no system message" in stderr
    assert prompts(lines) == [len("[user]how?[assistant]Hi![user]how?") + 1]


# Files.


@pytest.mark.thorough
def test_a_conversation_goes_on_where_it_was_saved(ask: Ask, tmp_path: Path) -> None:
    file = tmp_path / "a talk.json"
    _, lines, stderr = ask("how?", "/system Be kind.", f"/save {file}", "and?", "/stats")
    assert f"1 turn saved to {file}" in stderr
    _, later, stderr = ask("something else?", f"/load {file}", "and?", "/stats")
    assert f"1 turn and the system message loaded from {file}\n" in stderr
    assert prompts(later) == prompts(lines)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir() if "talk" in path.name] == ["a talk.json"]


@pytest.mark.thorough
def test_answers_of_another_model_are_named(ask: Ask, tmp_path: Path) -> None:
    file = tmp_path / "talk"
    ask("how?", f"/save {file}")
    file.write_text(file.read_text().replace('"model": "', '"model": "0'))
    assert "loaded from" in ask(f"/load {file}")[2]
    assert "; another model has written the answers" in ask(f"/load {file}")[2]


TURNS = st.builds(
    Turn,
    message=st.text(st.characters(exclude_categories=["Cs"])),
    answer=st.text(st.characters(exclude_categories=["Cs"])),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(st.text(), st.none() | st.just("Be kind."), st.lists(TURNS, max_size=4))
def test_what_is_saved_is_read_back(tmp_path: Path, model: str, system: str | None, turns: list[Turn]) -> None:
    saved = SavedConversation(model=model.encode(errors="ignore").decode(), system=system, turns=tuple(turns))
    save_conversation(tmp_path / "talk", saved)
    assert load_conversation(tmp_path / "talk") == saved


def message(role: str, content: object = "x") -> dict[str, object]:
    return {"role": role, "content": content}


GOOD: dict[str, Any] = {"format": "edgedec conversation", "version": 1, "model": "m", "messages": []}
ATTACKS = {
    "not JSON": "hello",
    "nested": "[" * 100_000,
    "a list": "[]",
    "other": '{"messages": []}',
    "too new": json.dumps(GOOD | {"version": 2}),
    "more keys": json.dumps(GOOD | {"more": 1}),
    "no model": json.dumps(GOOD | {"model": 3}),
    "no list": json.dumps(GOOD | {"messages": {}}),
    "no object": json.dumps(GOOD | {"messages": ["x"]}),
    "number": json.dumps(GOOD | {"messages": [message("user", 3), message("assistant")]}),
    "unanswered": json.dumps(GOOD | {"messages": [message("user")]}),
    "order": json.dumps(GOOD | {"messages": [message("assistant"), message("user")]}),
    "system later": json.dumps(GOOD | {"messages": [message("user"), message("assistant"), message("system")]}),
    "role": json.dumps(GOOD | {"messages": [message("user"), message("tool")]}),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_other_files_are_refused_by_name_and_left_unchanged(attack: str) -> None:
    file = Path("notes.json")
    file.write_text(ATTACKS[attack])
    with pytest.raises(UsageError, match=r"notes\.json: "):
        load_conversation(file)
    with pytest.raises(UsageError, match=r"notes\.json was not replaced: .*; choose another name"):
        save_conversation(file, SavedConversation(model="m", system=None, turns=()))
    assert file.read_text() == ATTACKS[attack]
    assert list(Path().iterdir()) == [file]


def test_places_that_are_no_files_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    saved = SavedConversation(model="m", system=None, turns=())
    for place in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(UsageError, match=str(place)):
            load_conversation(place)
        with pytest.raises(UsageError, match=str(place)):
            save_conversation(place, saved)
    with pytest.raises(UsageError, match="there is no such file"):
        load_conversation(tmp_path / "missing")


def test_a_surrogate_in_a_file_is_refused_and_the_conversation_stays(ask: Ask, tmp_path: Path) -> None:
    file = tmp_path / "talk"
    file.write_text(json.dumps(GOOD | {"messages": [message("user", "\ud800"), message("assistant")]}))
    _, lines, stderr = ask("how?", f"/load {file}", "how?", "/stats")
    assert "not valid Unicode" in stderr
    assert prompts(lines) == [len("[user]how?[assistant]Hi![user]how?") + 1]


def test_a_file_that_reads_back_as_something_else_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "edgedec.cli._conversation_file.load_conversation",
        lambda path: SavedConversation(model="", system=None, turns=()),
    )
    with pytest.raises(EdgedecError, match="it reads back as something else"):
        save_conversation(Path("talk"), SavedConversation(model="m", system=None, turns=()))
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/bye", "there is no command /bye; did you mean '/exit'?"),
        ("/rest", "there is no command /rest; did you mean '/reset'?"),
        ("/exit now", "/exit takes nothing after it, not 'now'"),
        ("/regen 3", "/regen takes nothing after it, not '3'"),
        ("/save", "/save needs the name of a file: /save FILE"),
        ("/save x", "there is nothing to save: the conversation has no answer yet"),
        ("/load nowhere", "file nowhere: there is no such file"),
        ("/load ~nosuchuser/x", "~nosuchuser/x: there is no user 'nosuchuser'; give the path without ~"),
        ("/load a\0b", "'a\\x00b': no file can have such a name"),
        ("/load " + "x" * 5000, "file " + "x" * 5000),
    ],
)
def test_commands_that_are_refused_end_nothing(ask: Ask, line: str, message: str) -> None:
    code, lines, stderr = ask(line, "how?")
    assert (code, lines) == (0, ["Hi!"])
    assert stderr.startswith(message)
