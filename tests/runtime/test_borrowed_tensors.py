"""Test draft models that borrow tensors of their target: they are in memory once, counted once, and change no text."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.bundle.bundle import Bundle
from edgedec.errors import DeviceError, UnsupportedError
from edgedec.memory.meter import MemoryMeter
from edgedec.memory.plan import Plan
from edgedec.runtime.decoders.autoregressive import AutoregressiveDecoder
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.planning.planning import make_plan
from edgedec.runtime.planning.speculation import SpecConfig, create_drafter
from edgedec.runtime.protocols import Limits
from edgedec.runtime.run_settings import RunSettings
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.session import Session
from edgedec.runtime.targets import onnx, open_target
from edgedec.runtime.targets._cpu import CpuTarget
from edgedec.runtime.targets._cpu_weights import resident_bytes
from tests.support.make_borrowing import EMBEDDING, HEAD, Pair, write_pair

pytestmark = pytest.mark.skipif(usable() is None, reason="the kernels' library was not built (no C++ compiler)")

KINDS = ("int8", "planes2", "native", "int4_offset")
TIED: Mapping[str, Any] = {"tie_word_embeddings": True}
MIB = 1 << 20
# Script that runs a target, its first argument, with a draft model, and prints the planned and the measured bytes.
MEASURE = """
import json, sys
from pathlib import Path
import numpy as np
from edgedec.runtime.planning.speculation import SpecConfig
from edgedec.runtime.session.session import Session
spec = SpecConfig(drafter="model", draft=Path(sys.argv[2]), draft_max=4)
with Session.open(Path(sys.argv[1]), threads=1, ctx_size=128, spec=spec) as session:
    answer = session.generate(np.array([256, 65, 66, 67], np.int32), n_predict=16, ignore_eos=True)
    print(json.dumps({"planned": session.run.plan.total_bytes, "peak": answer.timings.peak_bytes}))
"""
PROMPT = np.array([256, 65, 66, 67, 65, 66], np.int32)
GREEDY = SamplingConfig(temperature=0.0)
LIMITS = Limits(nodes=8, depth=4, positions=128)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    folder = tmp_path_factory.mktemp("pairs")
    made = {kind: write_pair(folder / kind, kind) for kind in KINDS}
    return made | {"tied": write_pair(folder / "tied", "int8", shared=[EMBEDDING], changes=TIED)}


def spec_of(draft: Path) -> SpecConfig:
    return SpecConfig(drafter="model", draft=draft, draft_max=4)


def plan_of(pair: Pair, draft: Path, **settings: Any) -> Plan:
    return make_plan(
        Bundle.open(pair.target), RunSettings(threads=1, ctx_size=128, spec=spec_of(draft), **settings)
    ).plan


def shared_bytes(pair: Pair, kind: str) -> int:
    """Return the bytes that a draft saves: its head in the form of the kernels, and the scales of its embedding's rows."""
    target = Bundle.open(pair.target)
    return resident_bytes(target.tensors[EMBEDDING if kind == "tied" else HEAD]) + 4 * 512


def arrays_of(target: CpuTarget) -> dict[int, int]:
    """Return the bytes of the arrays of weights by their address, of those that are not computed when a model is opened."""
    weights = target._weights
    return {array.ctypes.data: array.nbytes for array in weights.initializers.values()}


def cpu_targets(session: Session) -> tuple[CpuTarget, CpuTarget]:
    """Return the target of a session and that of its draft model."""
    decoder: Any = session.decoder
    assert isinstance(decoder, AutoregressiveDecoder)
    drafter: Any = decoder.drafter
    target, draft = decoder.target, drafter._drafter._loaded[1]
    assert isinstance(target, CpuTarget)
    assert isinstance(draft, CpuTarget)
    return target, draft


@pytest.mark.parametrize("kind", [*KINDS, "tied"])
def test_the_plan_counts_borrowed_tensors_once(pairs: dict[str, Pair], kind: str) -> None:
    pair = pairs[kind]
    whole, borrowing = plan_of(pair, pair.whole), plan_of(pair, pair.borrowing)
    saved = shared_bytes(pair, kind)
    assert whole.items["draft_weights"] - borrowing.items["draft_weights"] == saved
    same = whole.items.keys() - {"draft_weights", "draft_load_transient", "draft_self_test"}
    assert {name: borrowing.items[name] for name in same} == {name: whole.items[name] for name in same}
    assert sum(whole.phases["run"].values()) - sum(borrowing.phases["run"].values()) == saved
    assert borrowing.estimated_tokens_per_second == whole.estimated_tokens_per_second, "a pass reads what it did"


@pytest.mark.parametrize("kind", [*KINDS, "tied"])
def test_the_session_has_the_target_s_own_arrays(pairs: dict[str, Pair], kind: str) -> None:
    pair = pairs[kind]
    with Session.open(pair.target, threads=1, ctx_size=128, spec=spec_of(pair.borrowing)) as session:
        target, draft = cpu_targets(session)
        own, borrowed = arrays_of(target), arrays_of(draft)
        common = own.keys() & borrowed.keys()
        saved = shared_bytes(pair, kind) - 4 * 512
        assert 0 <= saved - sum(own[address] for address in common) < 64, (
            "the rest is the end of a matrix in its layout"
        )
        assert draft.embedding is target.embedding
        plan = session.run.plan.items
        together = sum({**own, **borrowed}.values()) + 4 * 512  # the embedding's scales, which its reader has once
        aligned = 64 * 2 * (len(own) + len(borrowed))  # ends of matrices in the kernels' layout
        assert 0 <= plan["weights"] + plan["draft_weights"] - together <= aligned


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("kind", [*KINDS, "tied"])
def test_no_text_depends_on_it(pairs: dict[str, Pair], kind: str) -> None:
    pair, texts = pairs[kind], []
    sampling = SamplingConfig(temperature=0.8, seed=3)
    for spec in (None, spec_of(pair.whole), spec_of(pair.borrowing)):
        with Session.open(pair.target, threads=1, ctx_size=128, spec=spec) as session:
            answer = session.generate(PROMPT, n_predict=24, sampling=sampling, ignore_eos=True)
            texts.append(answer.tokens)
    assert texts[0] == texts[1] == texts[2]


def test_a_released_drafter_has_the_target_s_tensors_again(pairs: dict[str, Pair]) -> None:
    pair = pairs["int4_offset"]
    with Session.open(pair.target, threads=1, ctx_size=128) as session:
        expected = session.generate(PROMPT, n_predict=24, sampling=GREEDY, ignore_eos=True).tokens
    with Session.open(pair.target, threads=1, ctx_size=128, spec=spec_of(pair.borrowing)) as session:
        before = cpu_targets(session)[1]
        held = session.memory.drafter_bytes
        session.memory.release_drafter()
        assert session.memory.drafter_bytes == 0
        assert session.generate(PROMPT, n_predict=24, sampling=GREEDY, ignore_eos=True).tokens == expected
        session.memory.restore_drafter()
        target, draft = cpu_targets(session)
        assert draft is not before
        assert session.memory.drafter_bytes == held
        assert arrays_of(target).keys() & arrays_of(draft).keys()
        assert session.generate(PROMPT, n_predict=24, sampling=GREEDY, ignore_eos=True).tokens == expected


def test_a_draft_outlives_its_target_s_session(pairs: dict[str, Pair]) -> None:
    """Check that it keeps what it has, and that it cannot be loaded again without its target."""
    pair = pairs["planes2"]
    draft = pair.draft(resident=True)
    assert draft.lender is not None
    drafter = create_drafter("model", draft, threads=1)
    with pytest.raises(
        DeviceError, match=r"borrowing: borrows .* of .*target, which is not open; open the target first"
    ):
        drafter.open(open_target(Bundle.open(pair.target), limits=LIMITS).info, LIMITS, None)  # type: ignore[arg-type]
    target = open_target(draft.lender, limits=LIMITS, threads=1)
    opened: Any = drafter.open(target.info, LIMITS, None)  # type: ignore[arg-type]
    expected = opened._target.bundle.weight(HEAD).dense()
    info = target.info
    del target
    gc.collect()
    arrays = opened._target._weights.initializers
    assert any(label.startswith(HEAD) for label in arrays)
    assert all(np.isfinite(array).all() for array in arrays.values() if array.dtype.kind == "f")
    assert (opened._target.bundle.weight(HEAD).dense() == expected).all()
    with pytest.raises(DeviceError, match="which is not open"):
        create_drafter("model", draft, threads=1).open(info, LIMITS, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["int8", "planes2"])
def test_a_target_that_streams_weights_lends_none_and_all_are_counted(pairs: dict[str, Pair], kind: str) -> None:
    pair = pairs[kind]
    streaming = replace(LIMITS, weight_bytes=1 << 20)
    whole = create_drafter("model", Bundle.open(pair.whole), threads=1).footprint(streaming)
    drafter = create_drafter("model", pair.draft(resident=True), threads=1)
    assert drafter.footprint(streaming) == whole
    assert drafter.footprint(LIMITS)["draft_weights"] == whole["draft_weights"] - shared_bytes(pair, kind)


def test_the_tensors_are_counted_where_the_target_is_on_another_device(pairs: dict[str, Pair]) -> None:
    pair = pairs["int8"]
    target, weights = Bundle.open(pair.target), []
    for draft in (pair.whole, pair.borrowing):
        reference = RunSettings(device="float_reference", ctx_size=64, spec=spec_of(draft))
        weights.append(make_plan(target, reference).plan.items["draft_weights"])
    assert abs(weights[0] - weights[1]) < 64 * len(target.tensors), "ends of tensors in the file"
    unshared = create_drafter("model", pair.draft(), threads=1)  # it is what a target on an accelerator has
    assert unshared.footprint(LIMITS) == create_drafter("model", Bundle.open(pair.whole), threads=1).footprint(LIMITS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_draft_computes_the_same_with_shared_and_with_read_tensors(pairs: dict[str, Pair], kind: str) -> None:
    pair = pairs[kind]
    resident = pair.draft(resident=True)
    assert resident.lender is not None
    target, rows = open_target(resident.lender, limits=LIMITS, threads=1), []
    for draft in (Bundle.open(pair.whole), pair.draft(), resident):
        opened: Any = create_drafter("model", draft, threads=1).open(target.info, LIMITS, None)  # type: ignore[arg-type]
        steps = opened.next_logits(PROMPT)
        step = next(steps)
        result = step.target.submit([(step.state, step.work)]).result()[0]
        with pytest.raises(StopIteration) as end:
            steps.send(result)
        rows.append(end.value.value.copy())
    assert (rows[0] == rows[1]).all()
    assert (rows[0] == rows[2]).all()


@pytest.mark.thorough
@pytest.mark.skipif(not MemoryMeter().available, reason="the meter needs Linux' /proc/self/smaps_rollup")
def test_the_measured_peak_is_smaller_by_what_the_plan_says(tmp_path: Path) -> None:
    pair = write_pair(tmp_path, "int8", changes={"vocab_size": 8192, "hidden_size": 1024})
    measured: list[dict[str, int]] = []
    for draft in (pair.whole, pair.borrowing) * 2:  # the first run of each bundle converts and checks it
        words = [sys.executable, "-c", MEASURE, str(pair.target), str(draft)]
        done = subprocess.run(words, capture_output=True, check=True, cwd=Path(__file__).parents[2])
        measured.append(json.loads(done.stdout))
    whole, borrowing = measured[2:]
    saved = whole["planned"] - borrowing["planned"]
    assert saved == 8192 * (1024 + 4) + 4 * 8192, "codes and scales of the head, and the scales of the embedding"
    assert abs(whole["peak"] - borrowing["peak"] - saved) < MIB
    assert borrowing["peak"] <= borrowing["planned"]


def test_onnx_runtime_refuses_a_draft_of_two_files_by_name(
    pairs: dict[str, Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx, "usable", lambda: None)
    monkeypatch.setattr(onnx, "load", lambda: None)
    pytest.importorskip("onnxruntime")
    with pytest.raises(UnsupportedError, match=r"borrowing: borrows lm_head\.weight, and ONNX Runtime"):
        plan_of(pairs["int8"], pairs["int8"].borrowing)


def test_a_float_head_is_refused_on_the_cpu_by_name(tmp_path: Path) -> None:
    pair = write_pair(tmp_path, "float")
    with pytest.raises(UnsupportedError, match=r"borrowing: borrows lm_head\.weight, and ONNX Runtime"):
        plan_of(pair, pair.borrowing)


def test_a_whole_model_can_be_borrowed(tmp_path: Path, pairs: dict[str, Pair]) -> None:
    """Check a draft that has no tensor of its own, whose weights file is empty."""
    pair = pairs["int8"]
    names = list(Bundle.open(pair.target).tensors)
    twin = write_pair(tmp_path, "int8", shared=names, changes={"num_hidden_layers": 2})
    assert Bundle.open(twin.borrowing, borrows=True).weights_file.stat().st_size == 0
    with Session.open(twin.target, threads=1, ctx_size=128, spec=spec_of(twin.borrowing)) as session:
        assert session.generate(PROMPT, n_predict=8, ignore_eos=True).tokens
