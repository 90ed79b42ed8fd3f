"""Values that no option can take, and what the message says about a value that cannot be read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.edgedec.cli.conftest import Edgedec


@pytest.mark.parametrize(
    ("arguments", "option", "kind"),
    [
        (("distil", "", "-o", "out"), "'TEACHER'", "TEACHER"),
        (("quantize", "checkpoint", "-o", ""), "'-o' / '--output'", "BUNDLE"),
        (("quantize", "checkpoint", "--output="), "'-o' / '--output'", "BUNDLE"),
        (("inspect", "--program", ""), "'--program'", "FOLDER"),
        (("eval", "-m", "demo", "-m", "", "--text", "x"), "'-m' / '--model'", "BUNDLE"),
        (("deploy", "bundle", "--host", ""), "'--host'", "[USER@]HOST"),
        (("boards", "show", ""), "'BOARD'", "BOARD"),
    ],
)
def test_nothing_is_no_value(edgedec: Edgedec, arguments: tuple[str, ...], option: str, kind: str) -> None:
    outcome = edgedec(*arguments)
    assert outcome.code == 2
    assert f"Error: Invalid value for {option}: it is empty; give {kind}\n" in outcome.stderr
    assert os.listdir() == []


def test_a_text_may_be_empty(edgedec: Edgedec, bundle: Path) -> None:
    assert "the prompt is empty; give some text with -p" in edgedec("generate", "-m", bundle, "-p", "").stderr


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (("distil", "https://a.b/c", "-o", "out"), "'TEACHER'"),
        (("quantize", "HTTPS://a.b/c", "-o", "out"), "'CHECKPOINT'"),
        (("generate", "-m", "hf://meta-llama/Llama-3.2-1B", "-p", "x"), "'-m' / '--model'"),
        (("eval", "-m", "demo", "--text", "s3://bucket/text"), "'--text'"),
        (("quantize", "checkpoint", "-o", "file:///tmp/x"), "'-o' / '--output'"),
    ],
)
def test_a_url_is_no_path(edgedec: Edgedec, arguments: tuple[str, ...], option: str) -> None:
    outcome = edgedec(*arguments)
    (url,) = (word for word in arguments if "://" in word)
    assert outcome.code == 2
    assert (
        f"Error: Invalid value for {option}: '{url}' is a URL, and edgedec makes no network connection"
        in outcome.stderr
    )
    assert os.listdir() == []


def test_a_text_may_be_a_url(edgedec: Edgedec, bundle: Path) -> None:
    outcome = edgedec("generate", "-m", bundle, "-p", "https://a.b/c?", "--temp", "0")
    assert (outcome.code, outcome.stdout) == (0, "Hi!\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("distil", "x", "-o", "y", "--steps", "1e3"), "'--steps': must be a whole number, not '1e3'"),
        (("distil", "x", "-o", "y", "--temp", "hot"), "'--temp': must be a number, not 'hot'"),
        (("distil", "x", "-o", "y", "--every", "0"), "'--every': must be at least 1, not 0"),
        (("distil", "x", "-o", "y", "--threads", "257"), "'-t' / '--threads': must be at most 256, not 257"),
        (("simulate", "-m", "demo", "--tokens", "0"), "'--tokens': must be at least 1, not 0"),
        (("deploy", "x", "--host", "y", "--port", "ssh"), "'--port': must be a whole number, not 'ssh'"),
    ],
)
def test_a_wrong_value_is_shown(edgedec: Edgedec, arguments: tuple[str, ...], message: str) -> None:
    outcome = edgedec(*arguments)
    assert outcome.code == 2
    assert outcome.stderr.splitlines()[-1] == f"Error: Invalid value for {message}"


def test_a_wrong_value_of_a_variable_is_shown(edgedec: Edgedec) -> None:
    outcome = edgedec("distil", "x", "-o", "y", env={"EDGEDEC_DISTIL_STEPS": "many"})
    assert outcome.stderr == "edgedec: environment variable EDGEDEC_DISTIL_STEPS: must be a whole number, not 'many'\n"
    outcome = edgedec("boards", "list", env={"EDGEDEC_BOARDS_LIST_JSON": "maybe"})
    assert outcome.stderr == "edgedec: environment variable EDGEDEC_BOARDS_LIST_JSON: must be 1 or 0, not 'maybe'\n"


def test_a_wrong_value_of_a_file_is_shown(edgedec: Edgedec) -> None:
    Path("edgedec.toml").write_text('[distil]\nsteps = "many"\n')
    outcome = edgedec("distil", "x", "-o", "y")
    assert (outcome.code, outcome.stderr) == (
        2,
        "edgedec: edgedec.toml: [distil] steps: must be a whole number, not 'many'\n",
    )
