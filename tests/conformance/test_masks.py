"""Test that each target computes the masks that it declares and refuses the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from edgedec.bundle.bundle import Bundle
from edgedec.errors import EdgedecError, UnsupportedError
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from edgedec.runtime.accelerator.options import AcceleratorOptions
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.protocols import F32, Limits, Pass, State, Target
from edgedec.runtime.targets import open_target
from edgedec.runtime.targets._portable import OnnxTarget
from edgedec.runtime.visibility import form, pack, tree, unpack
from tests.conformance.test_targets import CONFIG
from tests.support.gpu_here import need_gpu

ROWS = 6  # rows of a pass, after three committed ones
LIMITS = Limits(nodes=8, depth=7, positions=32)
DECLARED = {"cpu": "any", "float_reference": "any", "interpreter": "any", "portable": "tree", "gpu": "any"}
MASKS = st.lists(st.lists(st.booleans(), min_size=ROWS, max_size=ROWS), min_size=ROWS, max_size=ROWS).map(
    lambda rows: np.array(rows) | np.eye(ROWS, dtype=np.bool_)
)
LATER = np.eye(ROWS, dtype=np.bool_)
LATER[0, 4] = True  # a row that sees a later one, as in a block that is denoised
FOREIGN = np.eye(ROWS, dtype=np.bool_)
FOREIGN[4, [1, 2]] = True  # two rows that do not see each other


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("bundles") / "b"
    write_random_bundle(folder, CONFIG, method="ternary")
    return Bundle.open(folder)


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=[pytest.mark.thorough] if name == "gpu" else []) for name in DECLARED],
)
def target(request: pytest.FixtureRequest, bundle: Bundle) -> Target:
    if request.param == "portable":
        return OnnxTarget(bundle, device="cpu", limits=LIMITS, threads=1, taps=())
    if request.param == "gpu":
        need_gpu()
    if request.param == "cpu" and usable() is None:
        pytest.skip("the kernels' library was not built (no C++ compiler)")
    options: dict[str, Any] = {}
    if request.param == "interpreter":
        options["accelerator"] = AcceleratorOptions(overrides={"slots": 8})
    made = open_target(bundle, device=request.param, limits=LIMITS, **options)
    assert made.info.masks == DECLARED[request.param]
    return made


def begun(target: Target) -> State:
    state = target.open(LIMITS)
    run(target, state, [1, 2, 3], np.tri(3, dtype=np.bool_))
    state.commit(np.arange(3, dtype=np.int32))
    return state


def run(target: Target, state: State, ids: list[int], mask: NDArray[np.bool_], **more: Any) -> F32:
    n = len(ids)
    work = Pass(
        ids=np.array(ids, np.int32),
        positions=np.arange(state.length, state.length + n, dtype=np.int32),
        visible=pack(mask),
        logits=np.arange(n, dtype=np.int32),
    )
    (result,) = target.submit([(state, replace(work, **more))]).result()
    return result.logits.copy()


@pytest.mark.thorough(sample=1)
@settings(max_examples=15)
@given(visible=MASKS)
def test_a_row_is_what_a_pass_of_the_rows_that_it_sees_makes_of_it(target: Target, visible: NDArray[np.bool_]) -> None:
    """Row 0 and all that it depends on, through the rows that it sees, give the same bits in a pass of their own."""
    if form(pack(visible), ROWS) != "any":
        visible = visible | LATER
    ids = [10, 20, 30, 40, 50, 60]
    if target.info.masks != "any":
        with pytest.raises(
            UnsupportedError, match=r"masks of the form 'tree', .* one of the form 'any'; .*--device cpu"
        ):
            run(target, begun(target), ids, visible)
        return
    whole = run(target, begun(target), ids, visible)
    seen = visible[0].copy()
    for _ in range(ROWS):
        seen |= visible[seen].any(axis=0)
    rows = np.flatnonzero(seen)
    alone = run(
        target,
        begun(target),
        [ids[row] for row in rows],
        visible[np.ix_(rows, rows)],
        positions=(3 + rows).astype(np.int32),
    )
    np.testing.assert_array_equal(whole[rows], alone)


@pytest.mark.parametrize("mask", [LATER, FOREIGN], ids=["a later row", "rows that do not see each other"])
def test_the_mask_counts(target: Target, mask: NDArray[np.bool_]) -> None:
    """The row that sees more than itself says something else than it would alone."""
    ids = [10, 20, 30, 40, 50, 60]
    if target.info.masks == "any":
        changed = run(target, begun(target), ids, mask) != run(target, begun(target), ids, np.eye(ROWS, dtype=np.bool_))
        row = 0 if mask is LATER else 4
        assert changed[row].any()
        assert not np.delete(changed, row, axis=0).any()
    else:
        with pytest.raises(UnsupportedError, match="'any'"):
            run(target, begun(target), ids, mask)


def test_the_cpu_and_the_reference_agree_on_any_mask(bundle: Bundle) -> None:
    if usable() is None:
        pytest.skip("the kernels' library was not built (no C++ compiler)")
    made = [open_target(bundle, device=name, limits=LIMITS, kv_bits=32) for name in ("cpu", "float_reference")]
    rng = np.random.default_rng(3)
    for _ in range(5):
        visible = (rng.random((ROWS, ROWS)) < 0.4) | np.eye(ROWS, dtype=np.bool_)
        cpu, reference = (run(target, begun(target), [10, 20, 30, 40, 50, 60], visible) for target in made)
        assert np.abs(cpu - reference).max() < 0.02 * reference.std()


@pytest.mark.parametrize(
    ("visible", "message"),
    [
        (np.zeros((ROWS, 1), np.uint64), "row 0 of a pass does not see itself"),
        (
            pack(np.eye(ROWS, dtype=np.bool_)) | np.uint64(1 << ROWS),
            f"row 0 .* sees row {ROWS}, which it does not have",
        ),
        (pack(np.eye(ROWS - 1, dtype=np.bool_)), r"must be \[6, 1\], not \[5, 1\]"),
        (np.ones((ROWS, 2), np.uint64), r"must be \[6, 1\], not \[6, 2\]"),
    ],
)
def test_what_is_no_mask_is_refused(target: Target, visible: Any, message: str) -> None:
    with pytest.raises(EdgedecError, match=message):
        run(target, begun(target), [10, 20, 30, 40, 50, 60], np.eye(ROWS, dtype=np.bool_), visible=visible)


# The forms themselves


def slow_form(visible: NDArray[np.bool_]) -> str:
    """The definition: a chain is triangular; a tree's rows see their ancestors."""
    n = len(visible)
    if np.array_equal(visible, np.tri(n, dtype=np.bool_)):
        return "chain"
    parents = []
    for row in range(n):
        above = np.flatnonzero(visible[row, :row])
        parents.append(int(above[-1]) if len(above) else -1)
    return "tree" if np.array_equal(unpack(tree(np.array(parents, np.int32)), n), visible) else "any"


@pytest.mark.thorough
@settings(max_examples=300)
@given(
    st.one_of(
        MASKS,
        st.lists(st.integers(0, 5), min_size=1, max_size=70).map(
            lambda draws: unpack(
                tree(np.array([-1, *(min(draw, at) for at, draw in enumerate(draws))], np.int32)), len(draws) + 1
            )
        ),
    )
)
def test_a_form_is_that_of_the_slow_definition(visible: NDArray[np.bool_]) -> None:
    assert form(pack(visible), len(visible)) == slow_form(visible)
