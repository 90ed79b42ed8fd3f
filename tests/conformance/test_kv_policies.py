"""Hold every kind of policy of keys and values to its promise: a text depends on the model and its policy alone.

It does not depend on the drafter, the pieces in which the prompt is read, the texts beside it, threads, the rows that are
kept, or a pause on the disk. A new kind is tested as soon as ``tests/support/make_policies.py`` makes one.
"""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec import demo
from edgedec.bundle.bundle import Bundle
from edgedec.calibrated_bundle import with_policy, write_calibrated
from edgedec.errors import EdgedecError, UnsupportedError, UsageError
from edgedec.kv.policy import _KINDS, policy_kinds, read_policy
from edgedec.onnx.lowering import check_lowered
from edgedec.plugins import load, names
from edgedec.quantize.exporters.gguf.export import export_gguf
from edgedec.quantize.synthetic.random_bundle import SHAPES, write_random_bundle
from edgedec.reference.integer_profile.model import integer_graph
from edgedec.runtime import loop
from edgedec.runtime.engine.spill import SpillFolder
from edgedec.runtime.gpu.fusion import group_operations
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.model_graph import bundle_graph
from edgedec.runtime.planning.speculation import DRAFTERS, SpecConfig
from edgedec.runtime.protocols import F32, Limits, Pass
from edgedec.runtime.session import request_builder
from edgedec.runtime.session.session import Session
from edgedec.runtime.targets import onnx, open_target
from edgedec.runtime.targets._cpu import CpuTarget
from tests.runtime.test_windowed_texts import CONTEXT, SMALL, WISHES
from tests.support.make_policies import MAKERS

KINDS = policy_kinds()
SIZES = SMALL | {"num_attention_heads": 4, "num_key_value_heads": 4, "sliding_window": None}
LIMITS = Limits(nodes=32, depth=0, positions=CONTEXT)
needs_kernels = pytest.mark.skipif(usable() is None, reason="the kernels' library was not built (no C++ compiler)")
Bundles = dict[tuple[str, str], Path]  # by name, and kind of policy


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Bundles:
    folder = tmp_path_factory.mktemp("bundles")
    tokenizer = (demo.bundle_path("demo") / "tokenizer.json").read_text("utf-8")
    written = dict[tuple[str, str], Path]()
    for name, layers in (("model", 2), ("draft", 1)):
        written[name, "full"] = folder / name
        config = {**SHAPES["demo"], **SIZES, "num_hidden_layers": layers}
        write_random_bundle(folder / name, config, tokenizer_json=tokenizer)
        for kind, make in MAKERS.items():
            bundle = Bundle.open(folder / name)
            write_calibrated(bundle, folder / f"{name}-{kind}", make(bundle))
            written[name, kind] = folder / f"{name}-{kind}"
    return written


@pytest.fixture(scope="module")
def expected(bundles: Bundles) -> dict[str, list[str]]:
    """Return the texts of each kind with all rows of all heads, each written alone by Python's loop."""
    texts = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnx, "CpuTarget", partial(CpuTarget, rings=False))
        patch.setattr(loop, "load", lambda: None)
        for kind in ("full", *KINDS):
            with Session.open(bundles["model", kind], threads=1, ctx_size=CONTEXT) as session:
                texts[kind] = [session.generate(**wish).text for wish in WISHES]
    return texts


def opened(bundles: Bundles, kind: str, drafter: str, **options: Any) -> Session:
    draft = bundles["draft", kind] if drafter == "model" else None
    spec = SpecConfig(drafter=drafter, draft=draft, draft_max=5)
    return Session.open(bundles["model", kind], threads=1, ctx_size=CONTEXT, spec=spec, **options)


def test_every_kind_has_a_maker() -> None:
    assert sorted(MAKERS) == KINDS


@pytest.mark.thorough(sample=1)
@needs_kernels
@pytest.mark.parametrize("kind", KINDS)
def test_the_policy_changes_the_texts_and_full_is_without_it(
    bundles: Bundles, expected: dict[str, list[str]], kind: str
) -> None:
    """Otherwise the other tests of this file could not fail."""
    assert expected[kind] != expected["full"]
    with opened(bundles, kind, "none", kv_policy="full") as session:
        answers = [session.generate(**wish) for wish in WISHES]
        assert [answer.text for answer in answers] == expected["full"]
        assert {answer.timings.as_json()["kv_policy"] for answer in answers} == {"full"}
    with opened(bundles, kind, "none", kv_policy=kind) as session:
        assert session.generate(**WISHES[0]).timings.as_json()["kv_policy"] == kind


@needs_kernels
@pytest.mark.thorough(sample=3)
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("drafter", names(DRAFTERS))
@pytest.mark.parametrize("kind", KINDS)
def test_a_text_is_the_same_with_every_drafter(
    bundles: Bundles,
    expected: dict[str, list[str]],
    kind: str,
    drafter: str,
    compiled: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not compiled:
        monkeypatch.setattr(loop, "load", lambda: None)
    with opened(bundles, kind, drafter) as session:
        answers = [session.generate(**wish) for wish in WISHES]
        assert [answer.text for answer in answers] == expected[kind]
        assert {answer.timings.lossless for answer in answers} == {"exact"}


@needs_kernels
@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("drafter", ["none", "ngram", "model"])
@pytest.mark.parametrize("kind", KINDS)
def test_texts_written_together_and_parked_are_those_alone(
    bundles: Bundles,
    expected: dict[str, list[str]],
    kind: str,
    drafter: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_builder, "_AHEAD_SECONDS", 0.0)  # so that no text ends within the first steps
    rng, parked = random.Random(2), 0
    with SpillFolder(tmp_path, model="m") as disk, opened(bundles, kind, drafter, sequences=3) as session:
        free = session.target.free_rows
        session.memory.keep_on_disk(disk)
        streams = [session.stream(**wish) for wish in WISHES]
        while not all(stream.ended for stream in streams):
            session.scheduler.step()
            if rng.random() < 0.1:
                before = session.memory.parked
                session.memory.park()
                parked += session.memory.parked > before
            elif rng.random() < 0.1:
                session.memory.unpark()
        assert [stream.answer.text for stream in streams] == expected[kind]
        assert parked > 0
        session.scheduler.forget()
        assert session.target.free_rows == free


OFFLOADING = sorted(kind for kind in KINDS if getattr(load(_KINDS, kind.replace("-", "_")).POLICY, "offload", False))


@needs_kernels
@pytest.mark.thorough
@pytest.mark.parametrize("value_rows", [0, 7, None, CONTEXT])
@pytest.mark.parametrize("kind", OFFLOADING)
def test_a_text_is_the_same_with_any_number_of_values_in_memory(
    bundles: Bundles, expected: dict[str, list[str]], kind: str, value_rows: int | None
) -> None:
    for drafter in ("none", "model"):
        with opened(bundles, kind, drafter, value_rows=value_rows) as session:
            answers = [session.generate(**wish) for wish in WISHES]
            assert [answer.text for answer in answers] == expected[kind]
            keys = answers[-1].timings.keys
            assert keys is not None
            assert (keys.fetched > 0) == (value_rows != CONTEXT), "the other tests of this file have a file, too"


def last_logits(bundle: Bundle, pieces: list[int], device: str = "cpu", threads: int = 1) -> F32:
    """Return the logits after 80 tokens that were read in pieces of these sizes."""
    target = open_target(bundle, device=device, limits=LIMITS, threads=threads, kv_bits=16)
    state, at = target.open(LIMITS), 0
    ids = np.random.default_rng(3).integers(0, bundle.tokens.size, 80).astype(np.int32)
    for size in pieces:
        positions = np.arange(at, at + size, dtype=np.int32)
        (result,) = target.submit([(state, Pass(ids=ids[at : at + size], positions=positions))]).result()
        state.commit(np.arange(size, dtype=np.int32))
        at += size
    assert at == len(ids)
    return result.logits.copy()


@needs_kernels
@pytest.mark.parametrize("kind", KINDS)
def test_pieces_of_the_prompt_and_threads_change_no_bit(bundles: Bundles, kind: str) -> None:
    bundle = Bundle.open(bundles["model", kind])
    row_by_row = last_logits(bundle, [1] * 80)
    for pieces, threads in (([32, 32, 16], 1), ([7, 25, 31, 1, 16], 2), ([32, 32, 16], 2)):
        assert last_logits(bundle, pieces, threads=threads).tobytes() == row_by_row.tobytes()


@needs_kernels
@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_the_kernels_follow_the_reference(bundles: Bundles, kind: str) -> None:
    bundle = Bundle.open(bundles["model", kind])
    ours, defined = (last_logits(bundle, [32, 32, 16], device) for device in ("cpu", "float_reference"))
    np.testing.assert_allclose(ours, defined, rtol=2e-3, atol=2e-3)
    full = last_logits(Bundle.open(bundles["model", "full"]), [32, 32, 16])
    assert np.abs(full - defined).max() > 10 * np.abs(ours - defined).max()


@pytest.mark.parametrize("kind", KINDS)
def test_an_entry_is_that_of_its_policy_and_a_damaged_one_is_refused(bundles: Bundles, kind: str) -> None:
    config = Bundle.open(bundles["model", kind]).config
    entry = config["kv_policy"]
    policy = read_policy(config)
    assert policy is not None
    assert policy.to_json() == entry
    assert policy.lines()
    for key in entry:
        for wrong in (None, [1], {"a": 1}, "x", -1, {"layers.0.kv": {"a": None}}):
            damaged = {**entry, key: wrong}
            try:
                again = read_policy({"kv_policy": damaged})
            except EdgedecError:
                continue
            assert again is not None
            assert read_policy({"kv_policy": again.to_json()}) == again
    with pytest.raises(EdgedecError, match="kv_policy must have"):
        read_policy({"kv_policy": entry | {"more": 1}})


@pytest.mark.parametrize("kind", KINDS)
def test_a_demand_for_a_policy_that_is_not_there_names_the_next_step(bundles: Bundles, kind: str) -> None:
    plain = Bundle.open(bundles["model", "full"])
    command = rf"asks for {kind}; make such a bundle with: edgedec calibrate-kv .* --kind {kind} -o"
    with pytest.raises(UsageError, match=command):
        with_policy(plain, kind)
    other = next(name for name in KINDS if name != kind)
    with pytest.raises(UsageError, match=f"has the policy {kind}, and --kv-policy asks for {other}"):
        with_policy(Bundle.open(bundles["model", kind]), other)
    with pytest.raises(UsageError, match="--kv-policy must be one of full, auto, "):
        with_policy(plain, "quest")


@pytest.mark.parametrize("kind", KINDS)
def test_what_has_no_policies_refuses_the_bundle_by_name(bundles: Bundles, kind: str, tmp_path: Path) -> None:
    bundle = Bundle.open(bundles["model", kind])
    with pytest.raises(UnsupportedError, match="which a GGUF file does not support"):
        export_gguf(bundle, tmp_path / "x.gguf")
    with pytest.raises(UnsupportedError, match="which the accelerator does not support"):
        integer_graph(bundle)
    with pytest.raises(UnsupportedError, match="the GPU cannot"):
        group_operations(bundle_graph(bundle))
    graph = bundle_graph(bundle)
    if any(state.selection is not None for state in graph.states.values()):
        with pytest.raises(UnsupportedError, match="ONNX Runtime's own operators cannot choose keys"):
            check_lowered(graph, kernels=False)
