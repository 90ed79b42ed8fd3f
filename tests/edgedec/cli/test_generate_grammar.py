"""Test ``edgedec generate`` with a JSON schema, a grammar and a regular expression."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.edgedec.cli.conftest import Edgedec

PROMPT = ("-m", "demo", "-p", "Tom saw a dog.", "--temp", "0", "-c", "128")
SCHEMA = (
    '{"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": false}'
)


@pytest.mark.thorough
def test_each_option_forms_the_answer(edgedec: Edgedec, tmp_path: Path) -> None:
    schema, grammar = tmp_path / "schema.json", tmp_path / "list.lark"
    schema.write_text(SCHEMA)
    grammar.write_text('start: "[" /[a-z]{2}/ "]"')
    cases = {
        ("--json-schema", SCHEMA): r'\{\s*"ok"\s*:\s*(true|false)\s*\}',
        ("--json-schema", str(schema)): r'\{\s*"ok"\s*:\s*(true|false)\s*\}',
        ("--grammar", str(grammar)): r"\[[a-z]{2}\]",
        ("--regex", "(yes|no)!"): "(yes|no)!",
    }
    for options, pattern in cases.items():
        outcome = edgedec("generate", *PROMPT, *options, "--json")
        assert outcome.code == 0, outcome.stderr
        answer = json.loads(outcome.stdout)
        assert re.fullmatch(pattern, answer["text"])
        assert answer["stop_reason"] == "grammar"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--json-schema", '{"typ": "x"}'), "'typ' at #/typ"),
        (("--json-schema", "missing.json"), "no such file"),
        (("--regex", "("), "the regular expression is not supported"),
        (("--regex", "a", "--json-schema", "{}"), "--json-schema and --regex exclude each other"),
    ],
)
def test_a_wrong_grammar_is_refused_before_the_model_is_opened(
    edgedec: Edgedec, options: tuple[str, ...], message: str
) -> None:
    outcome = edgedec("generate", "-m", "no-such-model", "-p", "x", *options)
    assert outcome.code == 2
    assert message in " ".join(outcome.stderr.split())
