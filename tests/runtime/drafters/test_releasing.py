"""Test that a drafter gives its memory back in the middle of texts, has it again, and changes no text."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from edgedec import demo
from edgedec.errors import DeviceError
from edgedec.runtime.decoders.autoregressive import AutoregressiveDecoder
from edgedec.runtime.drafters import ngram
from edgedec.runtime.drafters._releasing import ReleasingDrafter
from edgedec.runtime.planning.speculation import SpecConfig
from edgedec.runtime.protocols import Drafter, Limits, TargetInfo, TokenTree
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.session import Session
from tests.support.no_collector import no_collector

INFO = TargetInfo(vocab=50, tokenizer_hash="", positions=64, taps=(), masks="any", batch_invariant=True)
ROOT = TokenTree(tokens=np.array([7], np.int32), parents=np.array([-1], np.int32), draft={})
TEXT = np.array([5, 6, 7, 8, 5, 6, 7], np.int32)
LIMITS = Limits(nodes=8, depth=4, positions=64)


class NoCost:
    def seconds(self, nodes: int, past: int) -> float:
        return 0.0


def guesses(draft: Any) -> list[list[int]]:
    return [guess.ids.tolist() for guess in draft.expand(TEXT, ROOT, np.zeros(1, np.int32))]


def test_a_released_drafter_makes_no_guesses_and_a_restored_one_does() -> None:
    drafter = ReleasingDrafter(ngram.create)
    draft = drafter.open(INFO, LIMITS, NoCost())
    assert guesses(draft) == [[8]]
    assert drafter.footprint(LIMITS) == ngram.create().footprint(LIMITS)
    drafter.release()
    drafter.release()
    assert drafter.released
    assert guesses(draft) == [[]]
    assert guesses(drafter.open(INFO, LIMITS, NoCost())) == [[]]
    assert drafter.footprint(LIMITS) == ngram.create().footprint(LIMITS)
    drafter.restore()
    drafter.restore()
    assert not drafter.released
    assert guesses(draft) == [[8]]


def test_a_drafter_that_cannot_be_loaded_again_stays_released() -> None:
    makes: list[Callable[[], Drafter]] = [ngram.create]

    class Broken:
        taps: tuple[str, ...] = ()

        def open(self, *args: Any) -> None:
            raise DeviceError("the file is gone")

    drafter = ReleasingDrafter(lambda: makes[0]())
    draft = drafter.open(INFO, LIMITS, NoCost())
    drafter.release()
    makes[0] = lambda: cast(Drafter, Broken())
    with pytest.raises(DeviceError, match="the file is gone"):
        drafter.restore()
    assert drafter.released
    assert guesses(draft) == [[]]


def test_a_dropped_draft_is_gone_at_once() -> None:
    """The drafter held every draft that it had opened, until the cache of the draft model was full of their rows."""
    drafter = ReleasingDrafter(ngram.create)
    with no_collector():
        dropped = weakref.ref(drafter.open(INFO, LIMITS, NoCost()))
        assert dropped() is None


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["model", "ngram", "auto"])
def test_texts_stay_the_same_when_the_drafter_comes_and_goes(name: str) -> None:
    draft = demo.bundle_path("demo-draft") if name != "ngram" else None
    spec = SpecConfig(drafter=name, draft=draft, draft_max=4)
    wishes: list[dict[str, Any]] = [
        {"prompt": f"One day, {who}", "n_predict": 60, "sampling": SamplingConfig(temperature=heat, seed=3)}
        for who in ("a cat", "Tom and Lily", "the moon")
        for heat in (0.0, 0.8)
    ]
    with Session.open("demo", threads=1, ctx_size=128) as session:
        alone = [session.generate(**wish).text for wish in wishes]
    rng = random.Random(1)
    with Session.open("demo", threads=1, ctx_size=128, sequences=3, spec=spec) as session:
        assert session.memory.drafter_bytes > 0
        streams = [session.stream(**wish) for wish in wishes]
        while not all(stream.ended for stream in streams):
            session.scheduler.step()
            if rng.random() < 0.1:
                session.memory.release_drafter()
                assert session.memory.drafter_bytes == 0
            elif rng.random() < 0.2:
                session.memory.restore_drafter()
        assert [stream.answer.text for stream in streams] == alone
        assert sum(stream.answer.timings.rounds.drafted for stream in streams) > 0


@pytest.mark.thorough
def test_the_draft_model_is_gone_after_the_release() -> None:
    spec = SpecConfig(drafter="model", draft=demo.bundle_path("demo-draft"), draft_max=2)
    with Session.open("demo", threads=1, ctx_size=128, sequences=2, spec=spec) as session:
        decoder = session.decoder
        assert isinstance(decoder, AutoregressiveDecoder)
        drafter = decoder.drafter
        assert isinstance(drafter, ReleasingDrafter)
        model = weakref.ref(cast(Any, drafter)._drafter._loaded[1])
        session.memory.release_drafter()
        gc.collect()
        assert model() is None


@pytest.mark.parametrize(
    "spec",
    [
        SpecConfig(),
        SpecConfig(drafter="ngram", verifier="typical"),
        SpecConfig(decoder="switch", drafter="model", draft=Path(demo.bundle_path("demo-draft"))),
    ],
    ids=["none", "typical", "switch"],
)
def test_a_drafter_on_which_texts_depend_is_never_released(spec: SpecConfig) -> None:
    with Session.open("demo", threads=1, ctx_size=128, spec=spec) as session:
        assert session.memory.drafter_bytes == 0
        session.memory.release_drafter()
        session.generate("One day", n_predict=2)
