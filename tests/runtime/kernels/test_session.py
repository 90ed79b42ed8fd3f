"""Test the sessions of ONNX Runtime that the kernels' library runs itself."""

from __future__ import annotations

import json
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgedec.onnx.model_bytes import DataType, Node, ValueInfo, array_value, encode_model
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.kernels.sessions.session import RESULTS, ROWS, WORDS, KernelSession, Memory
from tests.support.no_collector import no_collector

KERNELS = usable()
pytestmark = pytest.mark.skipif(KERNELS is None, reason="the kernels' library was not built (no C++ compiler)")

WIDTH = 3
# out.y[r] = x[rows[r]] * weight, and out.masks = visible
MODEL = encode_model(
    "session",
    nodes=[
        Node(kind="Mul", inputs=["x", "weight"], outputs=["product"]),
        Node(kind="Gather", inputs=["product", "rows"], outputs=["out.y"], attributes={"axis": 1}),
        Node(kind="Identity", inputs=["visible"], outputs=["out.masks"]),
    ],
    inputs=[
        ValueInfo(name="x", dtype=DataType.FLOAT, shape=[1, "n", WIDTH]),
        ValueInfo(name="rows", dtype=DataType.INT64, shape=["r"]),
        ValueInfo(name="visible", dtype=DataType.INT64, shape=["n", "words"]),
    ],
    outputs=[
        ValueInfo(name="out.y", dtype=DataType.FLOAT, shape=[1, "r", WIDTH]),
        ValueInfo(name="out.masks", dtype=DataType.INT64, shape=["n", "words"]),
    ],
    constants=[array_value("weight", np.zeros(WIDTH, np.float32))],
    opsets={"": 21},
)


def opened(model: bytes = MODEL, profile: Path | None = None) -> KernelSession:
    assert KERNELS is not None
    weight = np.array([1, 10, 100], np.float32)
    return KernelSession(KERNELS, model, threads=1, folder=Path(), initializers={"weight": weight}, profile=profile)


class Arrays:
    """The memory of a session for runs of up to ``rows`` rows."""

    def __init__(self, rows: int) -> None:
        words = -(-rows // 64)
        self.x = np.arange(rows * WIDTH, dtype=np.float32).reshape(rows, WIDTH)
        self.rows = np.zeros(rows, np.int64)
        self.visible = np.arange(rows * words)
        self.y, self.masks = np.zeros((rows, WIDTH), np.float32), np.zeros(rows * words, np.int64)

    def bind(self, session: KernelSession) -> None:
        session.bind(
            {
                "x": Memory(self.x, (1, ROWS, WIDTH)),
                "rows": Memory(self.rows, (RESULTS,)),
                "visible": Memory(self.visible, (ROWS, WORDS)),
                "unknown": Memory(np.zeros(1, np.float32), (1,)),  # the model does not have it
            },
            {"out.y": Memory(self.y, (1, RESULTS, WIDTH)), "out.masks": Memory(self.masks, (ROWS, WORDS))},
        )


def test_runs_of_all_sizes_use_the_callers_memory() -> None:
    session, arrays = opened(), Arrays(130)
    arrays.bind(session)
    for n, r in ((1, 1), (64, 3), (65, 65), (130, 1), (64, 3)):
        arrays.rows[:r] = chosen = np.arange(r)[::-1] * (n // r)
        arrays.y[...], arrays.masks[...] = -1, -1
        session.run(n, r)
        assert arrays.y[:r].tolist() == (arrays.x[chosen] * [1, 10, 100]).tolist()
        assert (arrays.y[r:] == -1).all()
        words = n * -(-n // 64)
        assert arrays.masks[:words].tolist() == arrays.visible[:words].tolist()
        assert (arrays.masks[words:] == -1).all()


def test_memory_that_is_bound_later_is_used_from_then_on() -> None:
    session, first, second = opened(), Arrays(2), Arrays(2)
    first.bind(session)
    session.run(2, 1)
    second.bind(session)
    second.x[0] = 7
    session.run(2, 1)
    assert (first.y[0].tolist(), second.y[0].tolist()) == ([0, 10, 200], [7, 70, 700])


@pytest.mark.parametrize(
    ("rows", "results", "message"),
    [
        (3, 1, "not enough space: expected 36, got 24"),
        (2, 3, "not enough space: expected 24, got 16"),
        (-1, 1, "negative"),
        (2, 2, "indices element out of data bounds"),
    ],
)
def test_an_error_of_a_run_has_onnx_runtimes_message(rows: int, results: int, message: str) -> None:
    """More rows than the memory has are refused before the run."""
    session, arrays = opened(), Arrays(2)
    arrays.bind(session)
    arrays.rows[1] = 9
    with pytest.raises(RuntimeError, match=message):
        session.run(rows, results)
    session.run(2, 1)  # the session goes on
    assert arrays.y[0].tolist() == [0, 10, 200]


def test_a_missing_input_is_an_error() -> None:
    session, arrays = opened(), Arrays(1)
    inputs = {"x": Memory(arrays.x, (1, ROWS, WIDTH)), "visible": Memory(arrays.visible, (ROWS, WORDS))}
    session.bind(inputs, {"out.y": Memory(arrays.y, (1, RESULTS, WIDTH))})
    with pytest.raises(RuntimeError, match="Missing Input: rows"):
        session.run(1, 1)


def test_a_model_that_cannot_be_loaded_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="protobuf"):
        opened(b"no model")
    wrong = encode_model(
        "wrong",
        nodes=[Node(kind="NoSuchOperator", inputs=["x"], outputs=["y"])],
        inputs=[ValueInfo(name="x", dtype=DataType.FLOAT, shape=[1])],
        outputs=[ValueInfo(name="y", dtype=DataType.FLOAT, shape=[1])],
        opsets={"": 21},
    )
    with pytest.raises(RuntimeError, match="NoSuchOperator"):
        opened(wrong)


def test_a_dropped_session_frees_its_weights_at_once() -> None:
    assert KERNELS is not None
    weight: NDArray[Any] = np.ones(WIDTH, np.float32)
    session = KernelSession(KERNELS, MODEL, threads=1, folder=Path(), initializers={"weight": weight})
    alive = weakref.ref(weight)
    with no_collector():
        del weight
        assert alive() is not None
        del session
        assert alive() is None


def test_a_profile_has_each_run(tmp_path: Path) -> None:
    session, arrays = opened(profile=tmp_path / "profile"), Arrays(2)
    arrays.bind(session)
    for _ in range(3):
        session.run(2, 1)
    events = json.loads(Path(session.end_profiling()).read_text("utf-8"))
    assert sum(event["name"] == "model_run" for event in events) == 3
