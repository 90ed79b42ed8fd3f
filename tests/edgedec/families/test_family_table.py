"""Run every cell of the support matrix: what works agrees with the reference, and what does not says why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from edgedec.bundle.bundle import Bundle
from edgedec.errors import UnsupportedError
from edgedec.families import build_graph
from edgedec.graph.graph import Graph
from edgedec.graph.ops import Operation
from edgedec.plugins import names
from edgedec.reference.integer_profile import defined, head
from edgedec.reference.integer_profile.calibrate import calibrate
from edgedec.reference.integer_profile.model import prepare
from edgedec.runtime.accelerator.calibrated import calibrated
from edgedec.runtime.accelerator.options import AcceleratorOptions
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.protocols import Limits, Target
from edgedec.runtime.targets import open_target
from edgedec.runtime.targets._cpu import CpuTarget
from edgedec.runtime.targets._portable import OnnxTarget
from tests.edgedec.families.support import make_family_table, make_golden_models, reference_golden
from tests.edgedec.families.support.make_family_table import EXECUTORS, ROWS, Row
from tests.edgedec.families.support.make_golden_models import F32
from tests.edgedec.families.support.reference_golden import TOLERANCE

LIMITS = Limits(nodes=8, depth=8, positions=32)
FLOAT_TARGETS = EXECUTORS[1:3]


@pytest.fixture(scope="module", params=ROWS, ids=lambda row: row.golden)
def row(request: pytest.FixtureRequest) -> Row:
    table_row: Row = request.param
    return table_row


@pytest.fixture(scope="module")
def bundles(row: Row, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Bundle]:
    folder, model = tmp_path_factory.mktemp("bundles"), reference_golden.read(row.golden)
    return {method: make_golden_models.write_bundle(folder / method, model, method) for method in ("float", "int8")}


@pytest.fixture(scope="module")
def seed(bundles: Mapping[str, Bundle]) -> int:
    return make_golden_models.clear_seed(bundles["int8"], LIMITS)


@pytest.fixture(scope="module")
def expected(bundles: Mapping[str, Bundle], seed: int) -> Mapping[str, F32]:
    targets = {
        method: open_target(bundle, device="float_reference", limits=LIMITS, kv_bits=32)
        for method, bundle in bundles.items()
    }
    return {method: run(target, bundles[method], seed) for method, target in targets.items()}


def run(target: Target, bundle: Bundle, seed: int, limits: Limits = LIMITS) -> F32:
    return make_golden_models.passes(target, limits, int(bundle.config["vocab_size"]), seed)[0]


def accelerator_limits(bundle: Bundle) -> Limits:
    """Return limits whose passes are no longer than any window, as the accelerator needs them."""
    windows = [state.window for state in build_graph(bundle.config).states.values() if state.window is not None]
    return replace(LIMITS, nodes=min([LIMITS.nodes, *windows]))


def open_executor(executor: str, bundle: Bundle) -> Target:
    """Open the executor of one column; the integer profile has no target of its own."""
    if executor == "ONNX portable":
        return OnnxTarget(bundle, device="cpu", limits=LIMITS, threads=1, taps=())
    if executor == "CPU kernels":
        kernels = usable()
        if kernels is None:
            pytest.skip("the kernels' library was not built (no C++ compiler)")
        return CpuTarget(bundle, kernels, limits=LIMITS, threads=1, taps=(), kv_bits=32)
    limits = accelerator_limits(bundle)
    options = AcceleratorOptions(overrides={"slots": limits.nodes})
    return open_target(bundle, device="interpreter", limits=limits, accelerator=options)


def refuses(row: Row, executor: str, action: Any) -> bool:
    """Return whether the table says that the executor refuses; if so, check the message and its advice."""
    reason = row.refused.get(executor)
    if reason is None:
        return False
    with pytest.raises(UnsupportedError) as caught:
        action()
    message = str(caught.value)
    assert reason in message
    assert any(name in message for name in ("layers.", "logits"))  # the operation, with its layer
    assert "--device" in message and "float_reference" in message  # noqa: PT018
    return True


def test_the_table_has_every_family() -> None:
    assert {row.family for row in ROWS} == set(names("edgedec.families"))
    for row in ROWS:
        assert reference_golden.read(row.golden).config["model_type"] == row.family
        assert set(row.refused) <= set(EXECUTORS[1:])  # the reference runs all of them


def test_the_float_reference_agrees_with_transformers(row: Row) -> None:
    model = reference_golden.read(row.golden)
    assert np.abs(make_golden_models.logits(model) - model.logits).max() < TOLERANCE


@pytest.mark.thorough(sample=12)
@pytest.mark.parametrize("executor", FLOAT_TARGETS)
@pytest.mark.parametrize("method", ["float", "int8"])
def test_float_targets_agree_with_the_reference(
    row: Row, executor: str, method: str, bundles: Mapping[str, Bundle], seed: int, expected: Mapping[str, F32]
) -> None:
    """Compare int8 models, too, to the float32's rounding: ``seed`` leaves no activation between two codes."""
    bundle = bundles[method]
    if refuses(row, executor, partial(open_executor, executor, bundle)):
        return
    assert np.abs(run(open_executor(executor, bundle), bundle, seed) - expected[method]).max() < TOLERANCE


@pytest.mark.thorough(sample=5)
def test_the_accelerator_computes_the_integer_profile(
    row: Row, bundles: Mapping[str, Bundle], seed: int, expected: Mapping[str, F32]
) -> None:
    """Check int8 weights: the accelerator's program gives the same numbers as the integer profile."""
    bundle, vocab = bundles["int8"], int(bundles["int8"].config["vocab_size"])
    if refuses(row, "integer profile", partial(calibrate, bundle)):
        assert refuses(row, "accelerator", partial(open_executor, "accelerator", bundle))
        return
    model = prepare(bundle, calibrated(bundle))  # the same as the target's
    sequence = model.open()
    ids = make_golden_models.drawn_ids(vocab, seed)
    parts = []
    for start, stop in ((0, 7), (7, 8), (8, 9), (9, 12)):
        parts.append(head.real(sequence.forward(ids[start:stop], check=True)))
        sequence.commit(np.arange(stop - start, dtype=np.int32))
    integers = np.concatenate(parts).astype(np.float32)
    assert np.corrcoef(integers.ravel(), expected["int8"][: len(integers)].ravel())[0, 1] > 0.98
    if refuses(row, "accelerator", partial(open_executor, "accelerator", bundle)):
        return
    accelerated = run(open_executor("accelerator", bundle), bundle, seed, accelerator_limits(bundle))
    assert np.array_equal(integers, accelerated[: len(integers)])


def test_each_refused_operation_is_in_the_document_of_the_integer_profile(row: Row) -> None:
    """Check all operations that it does not define, not only the one that a refusal names."""
    lacking = undefined(build_graph(reference_golden.read(row.golden).config))
    title = row.title.partition(",")[0]
    assert {kind for kind, titles in make_family_table.UNDEFINED.items() if title in titles} == lacking
    text = (make_family_table.DOCUMENT.parent / "integer-profile.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    assert {line[0].removeprefix("| ") for line in rows if title in line[-1].removesuffix(" |").split(", ")} == lacking


def undefined(graph: Graph) -> set[str]:
    """Return the kinds of all refused operations, by allowing each one that was refused and trying again."""
    kinds: set[str] = set()
    while True:
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(defined, "_undefined", partial(_unless, kinds, defined._undefined))
                patch.setattr(defined, "_misplaced_norm", partial(_unless, kinds, defined._misplaced_norm))
                defined.check_defined(graph)
        except UnsupportedError as error:
            kind = str(error).removeprefix("the integer profile cannot run ").partition(" ")[0]
            assert kind not in kinds
            kinds.add(kind)
        else:
            return kinds


def _unless(allowed: set[str], judge: Callable[..., str | None], op: Operation, *others: Any) -> str | None:
    return None if op.kind in allowed else judge(op, *others)


def test_the_document_is_up_to_date() -> None:
    """Compare with the output of ``python tests/edgedec/families/support/make_family_table.py``."""
    assert make_family_table.DOCUMENT.read_text(encoding="utf-8") == make_family_table.document()
