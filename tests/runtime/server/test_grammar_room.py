"""Test that a server under a budget has room for one grammar before it has further texts at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from edgedec import demo
from edgedec.bundle.bundle import Bundle
from edgedec.cli.run_options import RunOptions
from edgedec.memory.budget import find_budget
from edgedec.memory.meter import MemoryMeter
from edgedec.runtime.engine.ledger import AdmissionError
from edgedec.runtime.grammar.cache import GrammarCache
from edgedec.runtime.grammar.grammar import Grammar
from edgedec.runtime.grammar.lexer import MOST_LEXER_BYTES
from edgedec.runtime.grammar.tools import tool_grammar
from edgedec.runtime.server.errors import short_of_memory
from edgedec.runtime.server.memory import GRAMMAR_ROOM, ServerMemory, request_bytes, server_items
from tests.runtime.server.support.fake_session import ScriptedMemory

MIB = 1 << 20
REQUESTS, CONNECTIONS = 256, 320
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": f"tool_{at}",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
                "required": ["city"],
            },
        },
    }
    for at in range(5)
]


def opened(mib: int, parallel: int = 0) -> tuple[Any, int, Mapping[str, int]]:
    """Return the plan of `edgedec serve -m demo`, the number of texts at a time, and what is beside the model."""
    run, spec = RunOptions(model="demo", memory_budget=f"{mib}MiB"), RunOptions(model="demo").spec()
    budget = find_budget(mib * MIB)
    items = server_items(Bundle.open(demo.bundle_path()).tokens.size, requests=REQUESTS, connections=CONNECTIONS)
    beside = run.with_room(GRAMMAR_ROOM, parallel, spec, budget, beside=items)
    texts = run.parallel(parallel, spec, budget, most=8, beside=beside)
    settings = run.settings(spec=spec, budget_bytes=mib * MIB, sequences=texts, beside=beside)
    return run._plan()(settings).plan, texts, beside


def loaded(plan: Any) -> ServerMemory:
    memory: Any = ScriptedMemory()
    server = ServerMemory()
    server.load(plan, memory, GrammarCache(MIB), MemoryMeter())
    return server


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("mib", [24, 32, 40, 48, 64, 128])
def test_there_is_room_for_a_grammar_before_there_are_further_texts(mib: int) -> None:
    plan, texts, beside = opened(mib)
    assert plan.fits
    assert texts == 1 or beside["grammar_room"] == MOST_LEXER_BYTES
    assert (mib >= 48) == (beside["grammar_room"] == MOST_LEXER_BYTES)
    assert (mib >= 64) == (texts > 1)
    assert "grammar_room" not in loaded(plan).ledger.items()  # it is free for requests


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("mib", [20, 22, 24, 28, 32, 40, 48, 64, 96])
@pytest.mark.parametrize("parallel", [0, 1])
def test_a_request_with_tools_that_is_alone_is_always_answered(mib: int, parallel: int) -> None:
    plan, _, _ = opened(mib, parallel)
    assert plan.fits
    server = loaded(plan)
    for choice in ("auto", "required"):
        grammar = tool_grammar(TOOLS, choice)
        most = request_bytes(
            prompt=plan.ctx_size,
            answer=plan.ctx_size,
            program=len(grammar.program),
            lexer=grammar.lexer_bytes,
        )
        reservation = server.admit(most, alone=True, lexer=grammar.lexer_bytes)
        assert reservation is not None
        assert reservation.nbytes >= grammar.lexer_bytes
        reservation.close()


@pytest.mark.thorough
@pytest.mark.parametrize("mib", [48, 64, 96])
def test_any_grammar_is_answered_where_there_is_room(mib: int) -> None:
    server = loaded(opened(mib)[0])
    lexer = Grammar.regex("[a-z ]*a[a-z ]{30}x").lexer_bytes
    reservation = server.admit(request_bytes(prompt=10, answer=100, program=50, lexer=lexer), alone=True, lexer=lexer)
    assert reservation is not None


def test_the_refusal_names_what_was_charged_and_what_helps() -> None:
    server = loaded(opened(40, 1)[0])
    lexer = Grammar.regex("[a-z]+").lexer_bytes
    with pytest.raises(AdmissionError) as caught:
        server.admit(request_bytes(prompt=10, answer=100, program=50, lexer=lexer), alone=True, lexer=lexer)
    message = short_of_memory(caught.value, 1, texts=3, lexer_bytes=lexer).message
    for part in ("15.6 MiB of it for a grammar", "-np, now 3", "--ctx-size", "--memory-budget"):
        assert part in message
    assert "-np" not in short_of_memory(caught.value, 1, texts=1, lexer_bytes=lexer).message
