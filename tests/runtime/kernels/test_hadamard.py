"""Compare the kernels' Walsh-Hadamard transform with the reference, to the bit, on every code path and in the operator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgedec.errors import EdgedecError
from edgedec.host.ort import onnxruntime as ort
from edgedec.onnx.model_bytes import DataType, Node, ValueInfo, array_value, encode_model
from edgedec.reference.float_profile.ops.hadamard import transformed
from edgedec.runtime.kernels import CODE_PATHS, load
from edgedec.runtime.kernels.rows.rows import hadamard
from edgedec.runtime.kernels.sessions.registration import DOMAIN, register

F32 = NDArray[np.float32]
KERNELS = load()
USABLE = [path for path in CODE_PATHS if KERNELS is not None and KERNELS.usable(path)]
needs_library = pytest.mark.skipif(KERNELS is None, reason="the kernels' library was not built (no C++ compiler)")


def rows(seed: int, *shape: int) -> F32:
    return (100 * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def random_signs(width: int) -> F32:
    return np.random.default_rng(width).choice(np.array([-1, 1], np.float32), width)


@needs_library
@pytest.mark.parametrize("code_path", USABLE)
def test_every_block_has_the_references_bits(code_path: str) -> None:
    assert KERNELS is not None
    for block in (2**power for power in range(1, 14)):
        x, signs = rows(block, 3, block), random_signs(block)
        before, after = (hadamard(KERNELS, x, signs, inverse=inverse, code_path=code_path) for inverse in (False, True))
        assert before.tobytes() == transformed(x * signs, block).tobytes()
        assert after.tobytes() == (transformed(x, block) * signs).tobytes()


@needs_library
def test_a_block_that_is_no_power_of_two_is_refused() -> None:
    assert KERNELS is not None
    with pytest.raises(EdgedecError, match="power of two"):
        hadamard(KERNELS, rows(0, 2, 24), random_signs(24))
    with pytest.raises(EdgedecError, match="signs must be float32"):
        hadamard(KERNELS, rows(0, 2, 16), random_signs(32))


def session(width: int, *, threads: int = 1, signs: F32, **attributes: Any) -> ort.InferenceSession:
    assert KERNELS is not None
    node = Node(
        kind="Hadamard",
        inputs=["x", "signs"],
        outputs=["y"],
        name="node",
        domain=DOMAIN,
        attributes={"inverse": 0, **attributes},
    )
    model = encode_model(
        "one",
        nodes=[node],
        inputs=[ValueInfo(name="x", dtype=DataType.FLOAT, shape=(1, "n", width))],
        outputs=[ValueInfo(name="y", dtype=DataType.FLOAT, shape=None)],
        constants=[array_value("signs", signs)],
        opsets={"": 21, DOMAIN: 1},
    )
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, threads
    register(options, KERNELS)
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


@needs_library
@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
def test_the_operator_has_the_references_bits_in_every_pass(threads: int, inverse: bool) -> None:
    """Columns have signs of their own; 96 rows of 192 columns are more than one thread takes."""
    signs = random_signs(192)
    run = session(192, threads=threads, signs=signs, block=64, inverse=int(inverse))
    x = rows(1, 1, 96, 192)
    expected = transformed(x[0], 64) * signs if inverse else transformed(x[0] * signs, 64)
    for count in (0, 1, 5, 96):
        (actual,) = run.run(None, {"x": x[:, :count]})
        assert actual.shape == (1, count, 192)
        assert actual[0].tobytes() == expected[:count].tobytes()


@needs_library
def test_wrong_nodes_are_refused() -> None:
    for block in (0, 1, 24, 1 << 17, -2):
        with pytest.raises(Exception, match="Hadamard node: block must be a power of two from 2 to 65536"):
            session(64, signs=random_signs(64), block=block)
    with pytest.raises(Exception, match="columns of its rows must be a multiple of the block"):
        session(96, signs=random_signs(96), block=64).run(None, {"x": rows(0, 1, 2, 96)})
    with pytest.raises(Exception, match="must have a sign for each column"):
        session(96, block=32, signs=random_signs(64)).run(None, {"x": rows(0, 1, 2, 96)})
