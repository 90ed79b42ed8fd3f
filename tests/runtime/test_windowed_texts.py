"""Write texts with models whose layers keep the rows of their window only: each is the text of the model with all rows."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec import demo
from edgedec.bundle.bundle import Bundle
from edgedec.errors import UnsupportedError
from edgedec.onnx.lowering import emit
from edgedec.quantize.synthetic.random_bundle import SHAPES, write_random_bundle
from edgedec.runtime import loop
from edgedec.runtime.engine.prefix_cache import CachedRows, PrefixCache
from edgedec.runtime.engine.spill import SpillableState, SpillFolder
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.measure.choices import EncodedItem, Item, score_encoded
from edgedec.runtime.model_graph import bundle_graph
from edgedec.runtime.planning.speculation import SpecConfig
from edgedec.runtime.protocols import Limits, Pass, State
from edgedec.runtime.row_recipe import CAUSAL
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session import request_builder
from edgedec.runtime.session.session import Session
from edgedec.runtime.targets import onnx
from edgedec.runtime.targets._cpu import CpuTarget

pytestmark = pytest.mark.skipif(usable() is None, reason="the kernels' library was not built (no C++ compiler)")

WINDOW, CONTEXT = 24, 192
SMALL = {
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "sliding_window": WINDOW,
}
# Only the upper layer of "mixed" has a window; "draft" is the draft model of both.
MODELS: dict[str, dict[str, Any]] = {
    "all": {"model_type": "mistral"},
    "mixed": {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 1},
    "draft": {"model_type": "mistral", "num_hidden_layers": 1},
}
COMMON = "Once upon a time there was a little bear. It was a sunny day, and the bear was very happy. " * 2
WISHES: list[dict[str, Any]] = [
    {"prompt": prompt, "n_predict": 70, "sampling": SamplingConfig(temperature=heat, seed=5), "ignore_eos": True}
    for prompt, heat in ((COMMON + "One day", 0.0), (COMMON + "The", 1.0), ("The moon", 1.0), (COMMON, 0.0))
]


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("bundles")
    tokenizer = (demo.bundle_path("demo") / "tokenizer.json").read_text("utf-8")
    for name, model in MODELS.items():
        write_random_bundle(folder / name, {**SHAPES["demo"], **SMALL, **model}, tokenizer_json=tokenizer)
    return {name: folder / name for name in MODELS}


@pytest.fixture(scope="module")
def expected(bundles: dict[str, Path]) -> dict[str, list[str]]:
    """Return the texts of both models with all rows of all layers, each written alone by Python's loop."""
    texts: dict[str, list[str]] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnx, "CpuTarget", partial(CpuTarget, rings=False))
        patch.setattr(loop, "load", lambda: None)
        for name in ("all", "mixed"):
            with Session.open(bundles[name], threads=1, ctx_size=CONTEXT) as session:
                assert isinstance(session.target, CpuTarget)
                assert len(session.target._arena.pools) == 1
                texts[name] = [session.generate(**wish).text for wish in WISHES]
    return texts


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SpillFolder]:
    with SpillFolder(tmp_path, model="m") as folder:
        yield folder


def opened(bundles: dict[str, Path], name: str, drafter: str = "none", **options: Any) -> Session:
    draft = bundles["draft"] if drafter == "model" else None
    spec = SpecConfig(drafter=drafter, draft=draft, draft_max=5)
    session = Session.open(bundles[name], threads=1, ctx_size=CONTEXT, spec=spec, **options)
    assert session.run.plan.items["kv_ring"] > 0
    return session


@pytest.mark.nightly(sample=5)
@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("drafter", ["none", "ngram", "stand", "model"])
@pytest.mark.parametrize("name", ["all", "mixed"])
def test_a_text_is_that_of_all_rows(
    bundles: dict[str, Path],
    expected: dict[str, list[str]],
    name: str,
    drafter: str,
    compiled: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The prompts begin alike, so rows are kept from text to text as far as they are there."""
    if not compiled:
        monkeypatch.setattr(loop, "load", lambda: None)
    with opened(bundles, name, drafter) as session:
        assert [session.generate(**wish).text for wish in WISHES] == expected[name]


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("name", ["all", "mixed"])
def test_a_conversation_goes_on_and_a_shorter_beginning_runs_again(bundles: dict[str, Path], name: str) -> None:
    """A prompt that goes back by less than a pass keeps its rows, and one that goes back further none."""
    with opened(bundles, name) as session, opened(bundles, name) as fresh:
        options: dict[str, Any] = {"sampling": SamplingConfig(temperature=0), "ignore_eos": True}
        first = session.generate(COMMON, n_predict=40, **options)
        ids = [*session.tokenizer.encode(COMMON), *first.tokens]
        for end, kept in ((len(ids), True), (len(ids) - 30, True), (40, False)):
            prompt = np.array([*ids[:end], 9, 8, 7], np.int32)
            answer = session.generate(prompt, n_predict=8, **options)
            assert answer.tokens == fresh.generate(prompt, n_predict=8, **options).tokens
            assert answer.timings.prompt_kept == (min(end, len(ids) - 1) if kept else 0)


@pytest.mark.thorough
@pytest.mark.parametrize("drafter", ["none", "ngram", "model"])
@pytest.mark.parametrize("name", ["all", "mixed"])
def test_texts_written_together_and_parked_are_those_alone(
    bundles: dict[str, Path],
    expected: dict[str, list[str]],
    disk: SpillFolder,
    name: str,
    drafter: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_builder, "_AHEAD_SECONDS", 0.0)  # so that no text ends within the first steps
    rng, parked = random.Random(2), 0
    with opened(bundles, name, drafter, sequences=3) as session:
        free = session.target.free_rows
        session.memory.keep_on_disk(disk)
        for _ in range(2):  # the second time, prefixes of the first texts are there
            streams = [session.stream(**wish) for wish in WISHES]
            while not all(stream.ended for stream in streams):
                session.scheduler.step()
                if rng.random() < 0.1:
                    before = session.memory.parked
                    session.memory.park()
                    parked += session.memory.parked > before
                elif rng.random() < 0.1:
                    session.memory.unpark()
            assert [stream.answer.text for stream in streams] == expected[name]
        assert parked > 3
        session.scheduler.forget()
        assert session.target.free_rows == free


@pytest.mark.parametrize(("rows_read", "shared"), [(0, 64), (128, 0)])
def test_a_prompt_waits_for_a_common_beginning_only_as_long_as_it_can_be_shared(
    bundles: dict[str, Path], rows_read: int, shared: int
) -> None:
    """The second prompt begins like the first one. Once that was read far beyond the common part, nothing is shared."""
    prompts = [np.arange(100, 280, dtype=np.int32), np.array([*range(100, 164), 9, 8], np.int32)]
    with opened(bundles, "all", sequences=2) as session:
        streams = [session.stream(prompts[0], n_predict=3, ignore_eos=True)]
        while len(session.scheduler.decoders[0].cached) < rows_read:
            session.scheduler.step()
        streams.append(session.stream(prompts[1], n_predict=3, ignore_eos=True))
        session.scheduler.step()
        first = session.scheduler.running[0].sequence
        assert first is not None
        assert first.reading
        assert len(session.scheduler.running) == 1 + (not shared)
        while not all(stream.ended for stream in streams):
            session.scheduler.step()
        assert [stream.answer.timings.prompt_kept for stream in streams] == [0, shared]


def test_the_portable_graph_refuses_rings(bundles: dict[str, Path]) -> None:
    """Its target does not ask for them: ``tests/runtime/test_planning.py``."""
    bundle = Bundle.open(bundles["mixed"])
    with pytest.raises(
        UnsupportedError,
        match=r"layers\.1\..*: the portable ONNX graph keeps all rows .* state layers\.1\.kv is a ring",
    ):
        emit(bundle_graph(bundle, rings=True), bundle.tensors, positions=64).model()


# --- rows on the disk -------------------------------------------------------------------------------------------------

LIMITS = Limits(nodes=8, depth=0, positions=CONTEXT, cache_rows=2 * CONTEXT, batch_rows=8)


def rows(n: int) -> Any:
    return np.arange(n, dtype=np.int32)


def read(target: CpuTarget, state: State, ids: list[int]) -> Any:
    """Append rows to a sequence, and return the logits of the last one."""
    for start in range(0, len(ids), 8):
        chunk = np.array(ids[start : start + 8], np.int32)
        work = Pass(ids=chunk, positions=state.length + rows(len(chunk)))
        (result,) = target.submit([(state, work)]).result()
        state.commit(rows(len(chunk)))
    return result.logits.copy()


@pytest.mark.parametrize("name", ["all", "mixed"])
def test_rows_come_back_from_the_disk_as_far_as_they_were_there(
    bundles: dict[str, Path], disk: SpillFolder, name: str
) -> None:
    kernels = usable()
    assert kernels is not None
    target = CpuTarget(Bundle.open(bundles[name]), kernels, limits=LIMITS, threads=1, taps=())
    ids = [int(one) for one in np.random.default_rng(0).integers(0, 2000, 150)]
    free = target.free_rows
    kept = PrefixCache(target, LIMITS, CAUSAL, most=4)
    kept.disk = disk
    state = target.open(LIMITS)
    read(target, state, ids)
    least = next(length for length in range(150) if state.reach(length) == length and length > 0)
    assert 150 - 8 - 16 <= least <= 150 - 8
    kept.give(CachedRows(state=state, ids=ids, recipe=CAUSAL))
    assert kept.evict()
    assert (len(disk.files), target.free_rows) == (1, free)
    assert target.idle_bytes > 0
    target.release_idle()
    assert target.idle_bytes == 0
    for length in (150, least, least - 1, 70):
        found = kept.take([*ids[:length], 2040])
        assert found.ids == (ids[:length] if length >= least else [])
        other = target.open(LIMITS)
        read(target, other, ids[:length])
        again = read(target, found.state, [*ids[len(found.ids) : length], 5])
        np.testing.assert_array_equal(again, read(target, other, [5]))
        found.state.close()
        other.close()
    assert target.free_rows == free


def test_a_file_of_a_shorter_text_stays_if_the_longer_one_cannot_go_back_to_it(
    bundles: dict[str, Path], disk: SpillFolder
) -> None:
    kernels = usable()
    assert kernels is not None
    target = CpuTarget(Bundle.open(bundles["all"]), kernels, limits=LIMITS, threads=1, taps=())
    ids = [int(one) for one in np.random.default_rng(0).integers(0, 2000, 160)]
    kept = PrefixCache(target, LIMITS, CAUSAL, most=4)
    kept.disk = disk
    for length, files in ((70, [70]), (150, [70, 150]), (155, [70, 155]), (70, [70, 155])):
        state = target.open(LIMITS)
        read(target, state, ids[:length])
        kept.give(CachedRows(state=state, ids=ids[:length], recipe=CAUSAL))
        kept.evict()
        assert sorted(len(spilled.ids) for spilled in disk.files) == files
    found = kept.take(ids[:70])
    assert isinstance(found.state, SpillableState)
    assert found.state.length == 70


# --- figures ----------------------------------------------------------------------------------------------------------


def test_choices_have_the_scores_of_all_rows(bundles: dict[str, Path]) -> None:
    """The choices are longer than a pass, so the end of the question runs again before each of them."""
    kernels, rng = usable(), np.random.default_rng(3)
    assert kernels is not None
    item = EncodedItem(
        context=rng.integers(0, 2000, 60).astype(np.int32),
        choices=tuple(rng.integers(0, 2000, n).astype(np.int32) for n in (40, 3, 50)),
        item=Item(question="?", choices=("a", "b", "c"), answer=0),
    )
    scores = []
    for rings in (True, False):
        target = CpuTarget(Bundle.open(bundles["all"]), kernels, limits=LIMITS, threads=1, taps=(), rings=rings)
        scores.append(score_encoded(target, LIMITS, [item], vocab_limit=2000).log_likelihoods)
    assert scores[0] == scores[1]
