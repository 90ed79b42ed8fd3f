"""Test what hands that know llama.cpp or Ollama type: their spellings of options, and options that edgedec does not have."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from edgedec.cli import _other_programs
from edgedec.cli._other_programs import command_instead, option_elsewhere
from edgedec.cli._spelling_check import check_options
from edgedec.cli.app import app
from edgedec.errors import UsageError
from tests.edgedec.cli.conftest import Edgedec

ROOT: Any = typer.main.get_command(app)
CONTEXT: Any = app.info.context_settings


def leaves(group: Any, before: str = "edgedec") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from leaves(command, f"{before} {name}")
        else:
            yield f"{before} {name}", command


COMMANDS = dict(leaves(ROOT))
# Spellings of the table, with an example for those that stand for several.
ELSEWHERE = [one.replace("*", "x") for row in _other_programs._OPTIONS for one in row.split()]


def own(command: Any) -> set[str]:
    options = [option for option in command.params if option.param_type_name == "option"]
    return {name for option in options for name in (*option.opts, *option.secondary_opts)}


@pytest.mark.thorough(sample=2)
@pytest.mark.parametrize("name", COMMANDS)
def test_an_option_of_another_program_is_refused_by_name_in_every_command(name: str) -> None:
    """No such option is split into letters, with or without a value."""
    command = COMMANDS[name]
    for spelling in set(ELSEWHERE) - own(command):
        for words in ([spelling], [spelling, "99"], [f"{spelling}=99"], ["word", spelling, "-v"]):
            with pytest.raises(UsageError, match=rf"^{name} has no {re.escape(spelling)}, because [^;]+; [^;]+"):
                check_options(name, command.params, words)


def test_the_manual_quotes_refusals_as_they_are_printed() -> None:
    text = " ".join((Path(__file__).parents[3] / "docs" / "command-line.md").read_text("utf-8").split())
    quoted = re.findall(r"`((edgedec [a-z -]+?) has no (-\S+), because [^`]+)`", text)
    assert quoted
    for message, name, spelling in quoted:
        with pytest.raises(UsageError) as raised:
            check_options(name, COMMANDS[name].params, [spelling])
        assert str(raised.value) == message


def test_each_spelling_is_in_the_table_once() -> None:
    assert sorted(ELSEWHERE) == sorted(set(ELSEWHERE))
    assert option_elsewhere("--yarn-orig-ctx") == option_elsewhere("--rope-scale")
    assert option_elsewhere("--temp") is None


def test_each_spelling_of_the_table_is_lacking_somewhere() -> None:
    assert not set.intersection(*map(own, COMMANDS.values())) & set(ELSEWHERE)


def test_no_spelling_of_several_letters_is_split_by_another_command() -> None:
    """Options of other commands, such as -md, are looked up as a whole, too: "-m d" would be another model."""
    several = {name for command in COMMANDS.values() for name in own(command) if re.fullmatch(r"-\w{2,}", name)}
    assert several
    assert {name for name in several if option_elsewhere(name) is None} == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_a_value_is_no_option(name: str) -> None:
    """After an option with a value comes its value, whatever it looks like; after "--" come words."""
    for option in COMMANDS[name].params:
        if option.param_type_name == "option" and not (option.is_flag or option.count):
            check_options(name, COMMANDS[name].params, [option.opts[0], "-ngl", "word", "--", "-ngl"])


@pytest.mark.parametrize("name", COMMANDS)
def test_a_misspelt_option_gets_a_suggestion_in_every_command(name: str) -> None:
    known = sorted(spelling for spelling in own(COMMANDS[name]) if len(spelling) > 6)
    for spelling in known:
        typed = spelling[:4] + spelling[5:]
        if typed not in own(COMMANDS[name]):
            with pytest.raises(UsageError, match=r"did you mean '--[a-z-]+'\?$"):
                check_options(name, COMMANDS[name].params, [typed, "1"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("generate -temp 0", "edgedec generate has no option -temp; did you mean '--temp'?"),
        ("generate -seed=3", "edgedec generate has no option -seed; did you mean '--seed'?"),
        ("generate -vx", "edgedec generate has no option -vx; edgedec generate --help lists its options"),
        ("inspect --temp", "edgedec inspect has no option --temp; edgedec inspect --help lists its options"),
        ("generate --qqqq", "edgedec generate has no option --qqqq; edgedec generate --help lists its options"),
        ("gnerate", "edgedec has no command 'gnerate'; did you mean 'generate'?"),
        ("run demo", "edgedec has no command 'run'; use `edgedec chat`"),
        ("pull llama3", "edgedec has no command 'pull'; edgedec makes no network connection: download the checkpoint"),
        ("-m demo", "edgedec has no option -m; options follow a command: edgedec COMMAND -m ..."),
        ("--verison", "edgedec has no option --verison; did you mean '--version'?"),
        ("-ngl 3 chat", "edgedec has no -ngl, because a device holds the whole model; leave it out"),
        ("boards lst", "edgedec boards has no command 'lst'; did you mean 'list'?"),
        ("boards list -ngl 9", "edgedec boards list has no -ngl, because"),
    ],
)
def test_the_message_says_what_to_type(edgedec: Edgedec, words: str, message: str) -> None:
    outcome = edgedec(*words.split())
    assert (outcome.code, outcome.stdout) == (2, "")
    assert outcome.stderr.startswith(f"edgedec: {message}")


def test_every_command_that_a_message_names_exists() -> None:
    texts = [" ".join(advice) for advice in _other_programs._OPTIONS.values()]
    texts += [command_instead(name) or "" for name in _other_programs._COMMANDS]
    named = {match for text in texts for match in re.findall(r"`edgedec ([a-z-]+)", text)}
    assert named - {"--help", "--version"} <= set(ROOT.commands)
    assert not set(_other_programs._COMMANDS) & set(ROOT.commands)


def parsed(command: str, *words: str) -> dict[str, Any]:
    """Return the parameters in a context like the program's own, because a command keeps the first help option it makes."""
    context = COMMANDS[f"edgedec {command}"].make_context(command, list(words), **CONTEXT)
    params: dict[str, Any] = context.params
    return params


SAMPLING = [
    (("-s", "3"), ("--seed", "3")),
    (("--temperature", "0.5"), ("--temp", "0.5")),
    (("--predict", "7"), ("-n", "7")),
    (("--max-tokens", "7"), ("--n-predict", "7")),
    (("--spec-draft-n-max", "4"), ("--draft-max", "4")),
    (("--spec-draft-model", "a"), ("-md", "a")),
]
TALK = [
    (("-sys", "x"), ("--system", "x")),
    (("--system-prompt", "x"), ("--system", "x")),
    (("-sysf", "x"), ("--system-file", "x")),
]
ALIASES = [
    *itertools.product(("generate", "chat", "serve", "batch"), SAMPLING),
    *itertools.product(("generate", "chat", "batch"), [(("--stop", "a", "--stop", "b"), ("-r", "a", "-r", "b"))]),
    *itertools.product(("generate", "chat"), TALK),
    ("generate", (("-j", "{}"), ("--json-schema", "{}"))),
    ("generate", (("-jf", "x"), ("--json-schema", "x"))),
    ("generate", (("--grammar-file", "x"), ("--grammar", "x"))),
    ("chat", (("-st",), ("--single-turn",))),
    ("serve", (("-a", "x"), ("--alias", "x"))),
    ("serve", (("--no-webui",), ("--no-ui",))),
    ("generate", (("-vn5",), ("-v", "-n", "5"))),
    ("generate", (("-n5", "-vv"), ("--n-predict=5", "-v", "-v"))),
]


@pytest.mark.thorough(sample=12)
@pytest.mark.parametrize(("command", "spellings"), ALIASES)
def test_spellings_of_llama_cpp_mean_the_same(command: str, spellings: tuple[tuple[str, ...], tuple[str, ...]]) -> None:
    more = ("file", "-o", "out") if command == "batch" else ()
    theirs, ours = (parsed(command, "-m", "demo", *more, *words) for words in spellings)
    assert theirs == ours
    assert ours != parsed(command, "-m", "demo", *more)


BITS = [
    ("-ctk f16", 16),
    ("-ctk q8_0 -ctv q8_0", 8),
    ("--cache-type-k q4_0 --cache-type-v q4_0", 4),
    ("-ctk f32 -ctv f32", 32),
    ("-ctk q8_0 -ctv q8_0 --kv-bits 8", 8),
]


@pytest.mark.parametrize(("words", "bits"), BITS)
def test_types_of_llama_cpps_cache_are_bits(edgedec: Edgedec, bundle: Path, words: str, bits: int) -> None:
    assert edgedec("plan", bundle, "--json", *words.split()).json["kv_bits"] == bits


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "-ctk q8_0",
            "-ctk q8_0 and -ctv f16 differ, and keys and values have the same bits here; give -ctk q8_0 -ctv",
        ),
        ("-ctv q4_0", "-ctk f16 and -ctv q4_0 differ"),
        ("-ctk q5_0 -ctv q5_0", "-ctk must be one of f32, f16, q8_0, q4_0, not 'q5_0'"),
        ("-ctk q8_0 -ctv q8_0 --kv-bits 16", "--kv-bits 16 and -ctk q8_0 differ; give one of them"),
    ],
)
def test_types_of_the_cache_that_do_not_fit_are_refused(
    edgedec: Edgedec, bundle: Path, words: str, message: str
) -> None:
    outcome = edgedec("plan", bundle, *words.split())
    assert (outcome.code, outcome.stdout) == (2, "")
    assert message in outcome.stderr


@pytest.mark.parametrize("command", ["plan", "generate -p how? --temp 0", "chat -p how? -st --temp 0"])
def test_the_bundle_may_be_a_word(edgedec: Edgedec, bundle: Path, command: str) -> None:
    name, *words = command.split()
    as_word, as_option = edgedec(name, bundle, *words), edgedec(name, *words, "-m", bundle)
    assert as_word.code == as_option.code == 0
    drop = re.compile(r"[\d.,]+ .?i?B\b|[\d.]+ per second")
    assert drop.sub("", as_word.stdout) == drop.sub("", as_option.stdout) != ""


@pytest.mark.parametrize("command", ["plan", "generate", "chat", "serve", "bench"])
def test_two_models_are_refused_by_name(edgedec: Edgedec, command: str) -> None:
    outcome = edgedec(command, "one", "-m", "two")
    assert (outcome.code, outcome.stdout) == (2, "")
    assert "'one' and -m two are two models; give one of them" in outcome.stderr


def test_a_word_is_stronger_than_the_environment_and_files(edgedec: Edgedec, bundle: Path) -> None:
    Path("edgedec.toml").write_text('[plan]\nmodel = "nowhere"\n')
    assert edgedec("plan", bundle).code == 0
    assert edgedec("plan", bundle, env={"EDGEDEC_PLAN_MODEL": "nowhere"}).code == 0
    assert "nowhere: no such bundle" in edgedec("plan").stderr


def test_a_grammar_may_be_a_text_of_gbnf(edgedec: Edgedec, bundle: Path) -> None:
    outcome = edgedec("generate", bundle, "-p", "how?", "--grammar", 'root ::= "H" "i"')
    assert (outcome.code, outcome.stdout) == (0, "Hi\n")


@pytest.mark.thorough
def test_generate_answers_one_turn_of_the_chat_template(edgedec: Edgedec, bundle: Path) -> None:
    options = ("--temp", "0")
    talk = edgedec("chat", bundle, *options, stdin="how?\n/stats\n")
    answer = edgedec("generate", bundle, "--chat", "-p", "how?", *options)
    assert answer.stdout == talk.stdout.splitlines()[0] + "\n" == "Hi!\n"
    tokens = re.search(r"prompt: \d+ tokens", talk.stdout)
    assert tokens is not None
    assert tokens[0] in answer.stderr
    longer = edgedec("generate", bundle, "--chat", "-p", "how?", "-sys", "Be kind.", *options)
    assert f"prompt: {len('[system]Be kind.[user]how?') + 1} tokens" in longer.stderr


def test_generate_takes_a_template_in_place_of_the_models(edgedec: Edgedec, mute_bundle: Path) -> None:
    plain = edgedec("generate", mute_bundle, "--chat", "-p", "how?")
    assert (plain.code, plain.stdout) == (2, "")
    assert "--chat: the model has no chat template; give one with --chat-template" in plain.stderr
    template = "{{ messages[0].content }}!"
    outcome = edgedec("generate", mute_bundle, "--chat", "--chat-template", template, "-p", "how?", "-n", "1")
    assert outcome.code == 0
    assert f"prompt: {len('how?!')} tokens" in outcome.stderr


def test_options_of_conversations_need_one(edgedec: Edgedec, bundle: Path) -> None:
    outcome = edgedec("generate", bundle, "-p", "how?", "-sys", "x", "--chat-template", "chatml")
    assert (outcome.code, outcome.stdout) == (2, "")
    assert "--system, --chat-template: for conversations only; give --chat with it" in outcome.stderr


@pytest.mark.parametrize("command", ["generate --chat -p how?", "chat"])
def test_two_sources_of_a_system_message_are_refused(edgedec: Edgedec, bundle: Path, command: str) -> None:
    name, *words = command.split()
    outcome = edgedec(name, bundle, *words, "-sys", "x", "-sysf", "y")
    assert (outcome.code, outcome.stdout) == (2, "")
    assert "--system and --system-file are two sources of one message" in outcome.stderr
