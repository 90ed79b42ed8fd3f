"""Test the sessions that the kernels' library runs without ONNX Runtime."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from edgedec.onnx.fusion import FusedProgram, whole_program
from edgedec.onnx.model_bytes import Node
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.kernels.sessions.registration import DOMAIN
from edgedec.runtime.kernels.sessions.session import RESULTS, ROWS, KernelSession, Memory

KERNELS = usable()
pytestmark = pytest.mark.skipif(KERNELS is None, reason="the kernels' library was not built (no C++ compiler)")

WIDTH = 5
GAIN = np.array([1, -2, 3, 0.5, 4], np.float32)
F32 = NDArray[np.float32]


def program(*, threads: int = 1, rows: int = 0, weight: str = "gain", kind: str = "Multiply") -> FusedProgram:
    """Return a program for out.y[r] = (x * gain + x)[rows[r]]."""
    nodes = [
        Node(kind=kind, inputs=["x", weight], outputs=["scaled"], name="scale", domain=DOMAIN),
        Node(kind="Add", inputs=["scaled", "x"], outputs=["sum"], name="sum", domain=DOMAIN),
        Node(kind="SelectRows", inputs=["sum", "rows"], outputs=["y"], name="select", domain=DOMAIN),
        Node(kind="Identity", inputs=["y"], outputs=["out.y"]),
    ]
    made = whole_program(nodes, {"x", "rows"}, DOMAIN, threads, {weight}, rows=rows)
    assert made is not None
    return made


def opened(model: FusedProgram | None = None, **constants: F32) -> KernelSession:
    assert KERNELS is not None
    arrays = constants or {"gain": GAIN}
    return KernelSession(KERNELS, model or program(), threads=0, folder=Path(), initializers=arrays)


class Arrays:
    """The memory of a session for runs of up to ``rows`` rows."""

    def __init__(self, rows: int) -> None:
        self.x = np.arange(rows * WIDTH, dtype=np.float32).reshape(rows, WIDTH)
        self.rows = np.zeros(rows, np.int64)
        self.y = np.zeros((rows, WIDTH), np.float32)
        self.inputs = {"x": Memory(self.x, (1, ROWS, WIDTH)), "rows": Memory(self.rows, (RESULTS,))}
        self.outputs = {"out.y": Memory(self.y, (1, RESULTS, WIDTH))}

    def run(self, session: KernelSession, rows: int, chosen: NDArray[np.int64]) -> F32:
        self.rows[: len(chosen)] = chosen
        session.run(rows, len(chosen))
        return self.y[: len(chosen)]


def expected(x: F32, chosen: NDArray[np.int64]) -> F32:
    result: F32 = (x * GAIN + x)[chosen]
    return result


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_runs_of_all_sizes_use_the_callers_memory(threads: int) -> None:
    session, arrays = opened(program(threads=threads)), Arrays(9000)
    session.bind({**arrays.inputs, "unknown": Memory(np.zeros(1, np.float32), (1,))}, arrays.outputs)
    for rows, count in ((1, 1), (64, 3), (9000, 40), (2, 0)):
        arrays.y[...] = -1
        chosen = np.arange(count)[::-1] * (rows // max(1, count))
        assert arrays.run(session, rows, chosen).tolist() == expected(arrays.x, chosen).tolist()
        assert (arrays.y[count:] == -1).all()


def test_memory_that_is_bound_later_is_used_from_then_on() -> None:
    session, first, second = opened(), Arrays(2), Arrays(3)
    session.bind(first.inputs, first.outputs)
    one = np.ones(1, np.int64)
    first.run(session, 2, one)
    session.bind(second.inputs, second.outputs)
    second.x[1] = 7
    assert second.run(session, 2, one).tolist() == expected(second.x, one).tolist()
    assert first.y[0].tolist() == expected(first.x, one)[0].tolist()


@pytest.mark.parametrize(
    ("rows", "results", "message"),
    [
        (3, 1, "the memory of x has not enough space: expected 60, got 40"),
        (2, 3, "the memory of rows has not enough space: expected 24, got 16"),
        (-1, 1, "must not be negative"),
        (2, 2, "there is no row 9 of 2"),
    ],
)
def test_a_bad_run_is_refused_and_the_session_goes_on(rows: int, results: int, message: str) -> None:
    session, arrays = opened(), Arrays(2)
    session.bind(arrays.inputs, arrays.outputs)
    arrays.rows[1] = 9
    with pytest.raises(RuntimeError, match=message):
        session.run(rows, results)
    first = np.zeros(1, np.int64)
    assert arrays.run(session, 2, first).tolist() == expected(arrays.x, first).tolist()


def test_missing_memory_is_named() -> None:
    session, arrays = opened(), Arrays(1)
    with pytest.raises(RuntimeError, match="Missing input: x"):
        session.run(1, 1)
    session.bind(arrays.inputs, {})
    with pytest.raises(RuntimeError, match=r"Missing output: out\.y"):
        session.run(1, 1)


def test_an_output_of_another_shape_or_type_is_refused() -> None:
    session, arrays = opened(), Arrays(4)
    for memory in (Memory(arrays.y, (1, RESULTS, 4)), Memory(np.zeros((4, 5), np.int32), (1, RESULTS, WIDTH))):
        session.bind(arrays.inputs, {"out.y": memory})
        with pytest.raises(RuntimeError, match=r"out\.y has memory of another shape or type"):
            session.run(1, 1)


def test_a_constant_that_the_session_does_not_receive_is_named() -> None:
    with pytest.raises(RuntimeError, match="has not received the constant other"):
        opened(program(weight="other"))


def test_an_operator_that_does_not_exist_is_named() -> None:
    with pytest.raises(RuntimeError, match="cannot contain the operator NoSuchKind"):
        opened(program(kind="NoSuchKind"))


def test_there_is_no_profile() -> None:
    with pytest.raises(RuntimeError, match="only sessions of ONNX Runtime have a profile"):
        opened().end_profiling()


def test_a_program_names_the_values_of_its_buffers() -> None:
    assert set(program().slots) == {frozenset(["scaled"]), frozenset(["sum"])}


@pytest.mark.parametrize("most", [0, 1, 4, 100])  # the most rows of a pass, as the program says: it only makes room
def test_passes_may_grow_and_shrink(most: int) -> None:
    session, arrays = opened(program(rows=most)), Arrays(6)
    session.bind(arrays.inputs, arrays.outputs)
    for rows in (1, 3, 2, 6, 1):
        chosen = np.arange(rows, dtype=np.int64)
        assert arrays.run(session, rows, chosen).tolist() == expected(arrays.x, chosen).tolist()


@pytest.mark.parametrize("most", [-1, 1 << 17])
def test_a_program_with_an_impossible_number_of_rows_is_refused(most: int) -> None:
    with pytest.raises(RuntimeError, match="rows must be 0 to 65536"):
        opened(program(rows=most))


@given(at=st.integers(0, len(program().record) - 1))
def test_a_record_that_ends_early_is_refused(at: int) -> None:
    with pytest.raises(RuntimeError, match="cannot be read"):
        opened(FusedProgram(program().record[:at], ()))


@given(data=st.data())
def test_a_damaged_record_is_refused_or_runs(data: st.DataObject) -> None:
    """No number in it may lead outside of what it describes; the sanitized tests find what does."""
    record = bytearray(program().record)
    for _ in range(data.draw(st.integers(1, 3))):
        record[data.draw(st.integers(0, len(record) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        session = opened(FusedProgram(bytes(record), ()))
        arrays = Arrays(2)
        session.bind(arrays.inputs, arrays.outputs)
        session.run(2, 1)
    except RuntimeError:
        return
    assert arrays.y.shape == (2, WIDTH)


@pytest.mark.thorough
def test_sessions_in_several_threads_share_the_pool() -> None:
    chosen = np.arange(500) * 3

    def repeat(number: int) -> bool:
        session, arrays = opened(program(threads=3)), Arrays(4000)
        arrays.x += number
        session.bind(arrays.inputs, arrays.outputs)
        right = expected(arrays.x, chosen).tobytes()
        return all(arrays.run(session, 4000, chosen).tobytes() == right for _ in range(50))

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(repeat, range(8)))


# script for a process of its own, in which other tests have imported nothing
_IMPORTS = """
import sys
from edgedec import demo
from edgedec.runtime.session.session import Session
with Session.open(demo.bundle_path(sys.argv[1]), ctx_size=64) as session:
    text = session.generate(session.encode("Once"), n_predict=4).text
print(sorted({name.partition(".")[0] for name in sys.modules} & {"onnx", "onnxruntime"}), bool(text))
"""


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("model", ["demo", "demo-hybrid"])
def test_a_model_of_own_operations_runs_without_onnxruntime(model: str) -> None:
    command = [sys.executable, "-c", _IMPORTS, model]
    process: Any = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (process.returncode, process.stdout, process.stderr) == (0, "[] True\n", "")
