"""Write several texts at a time on an accelerator: in shared passes, and each as it is written alone."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec import demo
from edgedec.bundle.bundle import Bundle
from edgedec.errors import UnsupportedError, UsageError
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from edgedec.runtime import loop
from edgedec.runtime.accelerator.options import AcceleratorOptions
from edgedec.runtime.loop.flight import Flight
from edgedec.runtime.planning.planning import make_plan
from edgedec.runtime.planning.speculation import SpecConfig
from edgedec.runtime.protocols import I32
from edgedec.runtime.rounds import compiled
from edgedec.runtime.run_settings import RunSettings
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.batch import BatchDefaults, read_batch, run_batch
from edgedec.runtime.session.session import Session
from edgedec.runtime.targets.accelerator import ProgramTarget
from tests.runtime.accelerator.support import make_board_bundle
from tests.runtime.accelerator.support.tiny_config import CONFIG
from tests.runtime.server.support.serving import serving

TOKENS = 10


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle") / "tiny"
    write_random_bundle(folder, CONFIG, method="ternary")
    return folder


def options(**members: Any) -> AcceleratorOptions:
    return AcceleratorOptions(overrides={"slots": 8, **members})


def prompt(number: int) -> I32:
    """Return a prompt that repeats itself, so that drafters have something to copy."""
    return np.array(([5 + number, 9, 12, 7] * 5)[: 14 + number], np.int32)


def sampling(number: int) -> SamplingConfig:
    return SamplingConfig(temperature=0.0 if number % 2 == 0 else 0.8, seed=number)


def texts(session: Session, count: int) -> list[list[int]]:
    """Return texts that the session writes at a time; each next one is asked for some steps later than the one before."""
    streams = []
    for number in range(count):
        streams.append(
            session.stream(
                prompt(number), n_predict=TOKENS + 4 * number, sampling=sampling(number), ignore_eos=True, whole=True
            )
        )
        for _ in range(number % 3):
            session.scheduler.step()
    for stream in streams:
        "".join(stream)
    return [stream.answer.tokens for stream in streams]


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("spec", [SpecConfig(drafter="ngram"), None, SpecConfig(drafter="copy", policy="static")])
@pytest.mark.parametrize("count", [3, 5])
def test_texts_are_those_that_are_written_one_at_a_time(path: Path, count: int, spec: SpecConfig | None) -> None:
    """Check also that passes are shared, and that the compiled loop writes the end of the last text in its own part."""
    with Session.open(path, device="interpreter", accelerator=options(), ctx_size=64) as session:
        single = [texts_of(session, number) for number in range(count)]
        assert isinstance(session.target, ProgramTarget)
        assert not session.target.info.joins
        alone = session.target.counters.passes
    with Session.open(
        path, device="interpreter", accelerator=options(), ctx_size=64, sequences=count, spec=spec
    ) as session:
        target = session.target
        assert isinstance(target, ProgramTarget)
        assert target.info.joins
        lent = list[int]()
        if target.compiled is not None:
            own = target.compiled.lend

            def noted() -> None:
                lent.append(target.driver.part.group)
                own()

            target.compiled.lend = noted  # type: ignore[method-assign]
        assert texts(session, count) == single
        assert target.counters.passes < 0.75 * alone
    # With guesses, measured times decide which text is the last one, and whether it goes on alone.
    if loop.load() is not None and spec is None:
        assert any(lent), "the last text was not in the first part"


@pytest.mark.skipif(loop.load() is None, reason="the loop's library was not built (no C++ compiler)")
@pytest.mark.parametrize("long", [False, True])
def test_the_compiled_loop_writes_several_texts_in_each_pass(
    path: Path, long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With long passes the tokens of each round are read while the next one runs. The last text needs whole rows."""
    monkeypatch.setattr(compiled, "_LONG_SECONDS", 0.0 if long else 1e9)
    flights, own = list[int](), Flight.read

    def read(flight: Flight) -> tuple[int, int]:
        flights.append(len(flight.call.texts))
        return own(flight)

    monkeypatch.setattr(Flight, "read", read)
    wished = [sampling(0), SamplingConfig(temperature=0.9, top_k=3, seed=4), SamplingConfig(temperature=1.0, seed=2)]
    settings: list[dict[str, Any]] = [
        {"n_predict": TOKENS, "sampling": one, "ignore_eos": True, "whole": True} for one in wished
    ]
    with Session.open(path, device="interpreter", accelerator=options(), ctx_size=64, sequences=3) as session:
        target = session.target
        assert isinstance(target, ProgramTarget)
        assert target.compiled is not None
        single = [session.generate(prompt(number), **one).tokens for number, one in enumerate(settings)]
        before, counted = target.counters, int(target.compiled.arguments.passes)
        flights.clear()
        streams = [session.stream(prompt(number), **one) for number, one in enumerate(settings)]
        for stream in streams:
            "".join(stream)
        assert [stream.answer.tokens for stream in streams] == single
        passes, lent = target.counters.passes - before.passes, int(target.compiled.arguments.passes) - counted
        assert lent >= TOKENS - 2, "the rounds were Python's"
        assert passes < 2 * TOKENS, "each text had passes of its own"
        assert (3 in flights) == long


def texts_of(session: Session, number: int) -> list[int]:
    answer = session.generate(prompt(number), n_predict=TOKENS + 4 * number, sampling=sampling(number), ignore_eos=True)
    return answer.tokens


def test_a_plan_has_room_for_every_text(path: Path) -> None:
    bundle = Bundle.open(path)
    one, three = (
        make_plan(
            bundle, RunSettings(device="interpreter", ctx_size=128, sequences=count, accelerator=options(context=384))
        )
        for count in (1, 3)
    )
    assert one.plan.items["kv"] == three.plan.items["kv"], "the same cache, of one text or in parts"
    more = make_plan(bundle, RunSettings(device="interpreter", ctx_size=128, sequences=12, accelerator=options()))
    assert more.plan.items["kv"] == pytest.approx(one.plan.items["kv"] * 12 * 128 / 384, rel=0.01)
    assert one.text_note == three.text_note == ""
    assert (
        "has rows of 8 texts at most, so 12 texts take 2 passes for a token each; --parallel 8 takes" in more.text_note
    )


def test_texts_that_no_cache_holds_are_refused(path: Path) -> None:
    bundle = Bundle.open(path)
    settings = RunSettings(device="interpreter", ctx_size=128, sequences=64, accelerator=options())
    built = replace(settings, accelerator=replace(options(sequences=8, context=1024), built=True))
    for accelerator in (built, replace(settings, accelerator=options(context=1024))):
        with pytest.raises(UsageError, match=r"--ctx-size must be 1 to 16, which is what the accelerator has, not 128"):
            make_plan(bundle, accelerator)
    with pytest.raises(UnsupportedError, match=r"has rows of one text, not 64: .*--parallel 1.*sequences=8"):
        make_plan(bundle, replace(settings, accelerator=replace(options(), built=True)))


@pytest.mark.thorough
def test_a_server_writes_the_texts_of_its_clients_at_a_time() -> None:
    prompts, asked = (
        ("Once upon a time", "Once upon a time, there was a cat", "The moon"),
        SamplingConfig(temperature=0),
    )
    with Session.open(demo.bundle_path(), device="interpreter", ctx_size=128) as session:
        right = [session.generate(text, n_predict=10, sampling=asked).text for text in prompts]
        alone = session.target.counters.passes  # type: ignore[attr-defined]
    opened = list[Session]()

    def served() -> Session:
        opened.append(Session.open(demo.bundle_path(), device="interpreter", ctx_size=128, sequences=3))
        return opened[0]

    with serving(served) as server, ThreadPoolExecutor(3) as clients:

        def text(one: str) -> str:
            response = server.complete(one, max_tokens=10, temperature=0)
            assert response.status_code == 200, response.text
            written: str = response.json()["choices"][0]["text"]
            return written

        assert list(clients.map(text, prompts)) == right
        assert opened[0].target.counters.passes < alone  # type: ignore[attr-defined]


@pytest.mark.thorough
def test_a_batch_is_answered_in_shared_passes(tmp_path: Path) -> None:
    requests = [{"prompt": text, "n_predict": 8} for text in ("One day", "The little dog", "Once", "The moon", "Hello")]
    (source := tmp_path / "in.jsonl").write_text("".join(json.dumps(one) + "\n" for one in requests))
    answers, passes = list[list[str]](), list[int]()
    for sequences in (1, 4):
        with Session.open("demo", device="interpreter", ctx_size=64, sequences=sequences) as session:
            items = read_batch(
                source, session.bundle.sha256, BatchDefaults(sampling=SamplingConfig(temperature=0.7, seed=5))
            )
            run_batch(session, items, output := tmp_path / f"out{sequences}.jsonl")
            passes.append(session.target.counters.passes)  # type: ignore[attr-defined]
        answers.append([json.loads(line)["text"] for line in output.read_text().splitlines()])
    assert answers[0] == answers[1]
    assert passes[1] < 0.6 * passes[0]


@pytest.mark.thorough
def test_texts_of_a_board_bundle_share_passes(tmp_path: Path) -> None:
    make_parts = tmp_path / "parts"
    make_parts.mkdir()
    bundle = make_board_bundle.make(make_parts, sequences=2).write(tmp_path / "board.edgedec")
    prompts = [np.array([first, 5, 7], np.int32) for first in (3, 4)]

    def passes(session: Session) -> int:
        assert isinstance(session.target, ProgramTarget)
        return session.target.counters.passes

    with Session.open(bundle, device="interpreter", ctx_size=32) as session:
        single = [session.generate(ids, n_predict=8, sampling=sampling(0), ignore_eos=True).tokens for ids in prompts]
        alone = passes(session)
    with Session.open(bundle, device="interpreter", ctx_size=32, sequences=2) as session:
        streams = [session.stream(ids, n_predict=8, sampling=sampling(0), ignore_eos=True) for ids in prompts]
        for stream in streams:
            "".join(stream)
        assert [stream.answer.tokens for stream in streams] == single
        assert passes(session) < 0.75 * alone
