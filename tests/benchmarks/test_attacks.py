"""Test the attacks on a server: that each sends what its name says, and the shape of the report. No time is compared."""

from __future__ import annotations

import asyncio
import importlib
import json
from typing import Any

import pytest

from edgedec import demo
from edgedec.errors import UsageError
from edgedec.runtime.session.session import Session
from tests.runtime.server.support.serving import serving

attacks: Any = importlib.import_module("benchmarks.server.attacks")
ATTACKS, Attacker = attacks.ATTACKS, importlib.import_module("benchmarks.server.attackers").Attacker
Probes, ProbeSamples = attacks.Probes, importlib.import_module("benchmarks.server.probes").ProbeSamples

KEY = "key"
REFUSED = {"without-key", "refused"}  # without a key
SILENT = {"without-key", "silent-bodies", "slow-bodies", "connections"}  # never send a whole request


class Recorded(Attacker):  # type: ignore[misc, valid-type]  # loaded by its path
    """An attacker that keeps what it would send."""

    def __init__(self) -> None:
        super().__init__(0, KEY)
        self.parts: list[bytes] = []

    async def send(self, *parts: bytes, pause_s: float = 0.0) -> None:
        self.parts = [*parts]


def sent(name: str, seed: int) -> tuple[dict[str, str], bytes]:
    """Return the headers and the body of what an attack sends."""
    attacker = Recorded()
    attacker.draw.seed(seed)
    asyncio.run(ATTACKS[name][0](attacker))
    head, _, body = b"".join(attacker.parts).partition(b"\r\n\r\n")
    lines = [line.partition(": ") for line in head.decode().split("\r\n")[1:]]
    return {name.lower(): value for name, _, value in lines}, body


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_sends_what_its_name_says(name: str) -> None:
    headers, body = sent(name, 0)
    assert (f"Bearer {KEY}" == headers.get("authorization")) == (name not in REFUSED | {"connections"})
    assert (len(body) < int(headers.get("content-length", 1))) == (name in SILENT)
    if name not in SILENT | REFUSED:
        assert isinstance(json.loads(body), dict)
        assert len(body) < 1 << 20, "the server would refuse it for its size"


@pytest.mark.parametrize(
    "name", ["schema", "optional", "enumeration", "grammar", "required-text", "long-prompts", "logprobs"]
)
def test_no_cache_helps_an_attack(name: str) -> None:
    attacker = Recorded()
    bodies = set()
    for _ in range(8):
        asyncio.run(ATTACKS[name][0](attacker))
        bodies.add(b"".join(attacker.parts))
    assert len(bodies) > 4


def test_the_attacks_are_chosen_by_name() -> None:
    assert attacks.chosen([]) == [attacks.NONE, *ATTACKS]
    assert attacks.chosen(["grammar", "none"]) == ["none", "grammar"]
    with pytest.raises(UsageError, match="--only gramar: there is no such attack; there are none, without-key"):
        attacks.chosen(["gramar"])


def row(**members: Any) -> dict[str, Any]:
    samples = ProbeSamples([1.0, 3.0, 2.0])
    return {
        "attack": "grammar",
        "answers": {"400": 7, "200": 2},
        **{goal: samples.as_json() for goal in attacks.GOALS_MS},
        "resident_peak_bytes": 90 << 20,
        "resident_growth_bytes": 5 << 20,
        "budget_bytes": 64 << 20,
        "peak_bytes": 31 << 20,
        "ledger_peak_bytes": 40 << 20,
        "other_share": 0.25,
        **members,
    }


def test_figures_are_those_of_the_times() -> None:
    samples = ProbeSamples([float(at) for at in range(200, 0, -1)])
    samples.failed("503")
    samples.failed("503")
    shown = {"count": 200, "median_ms": 100.5, "p99_ms": 199.0, "longest_ms": 200.0, "failures": {"503": 2}}
    assert samples.as_json() == shown
    assert ProbeSamples().as_json() == {
        "count": 0,
        "median_ms": None,
        "p99_ms": None,
        "longest_ms": None,
        "failures": {},
    }


def test_a_goal_is_missed_by_a_long_time_a_failure_or_no_time() -> None:
    failed = ProbeSamples([1.0])
    failed.failed("429")
    assert attacks.exceeded(row()) == []
    assert attacks.exceeded(row(gaps=ProbeSamples([1.0, 501.0]).as_json())) == ["gaps"]
    assert attacks.exceeded(row(chat=failed.as_json(), health=ProbeSamples().as_json())) == ["chat", "health"]


def test_the_table_has_a_line_for_each_attack() -> None:
    failed = ProbeSamples([1.0])
    failed.failed("429")
    names, first, second = attacks.table([row(), row(chat=failed.as_json(), health=ProbeSamples().as_json())])
    assert len(names) == len(first) == len(second)
    assert dict(zip(names, first, strict=True)) == {
        "attack": "grammar",
        "chat, ms": "2, 3, 3",
        "gap, ms": "2, 3, 3",
        "health, ms": "2, 3, 3",
        "resident, MiB": "90 (+5)",
        "charged, MiB": "31 of 64",
        "others": "25%",
        "misses": "nothing",
        "answers": "2 200, 7 400",
    }
    assert dict(zip(names, second, strict=True))["misses"] == "chat; health; chat: 1 429"


@pytest.mark.thorough
def test_the_clients_measure_a_server() -> None:
    with serving(
        lambda: Session.open(demo.bundle_path(), threads=1, ctx_size=512, sequences=3), api_keys=(KEY,)
    ) as served:
        with Probes(served.port, KEY) as probes:
            while not (probes.chat.times_ms and probes.gaps.times_ms and probes.health.times_ms):
                served.client.get("/health")
        for samples in (probes.chat, probes.gaps, probes.health):
            assert samples.failures == {}
            assert min(samples.times_ms) > 0
        with Probes(served.port, "wrong") as probes:
            while not (probes.chat.failures and probes.gaps.failures):
                served.client.get("/health")
        assert set(probes.chat.failures) == set(probes.gaps.failures) == {"401"}
