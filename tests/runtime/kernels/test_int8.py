"""Compare the int8 product of every code path, and edgedec::Int8MatMul in ONNX Runtime, with NumPy's integers, to the
bit.

Paths of other processors run under emulation if there is one, as in test_ternary.py.
"""

from __future__ import annotations

import ctypes
import mmap
import shutil
import struct
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import StringStringEntryProto, TensorProto, helper, numpy_helper

from edgedec.errors import EdgedecError
from edgedec.host.ort import onnxruntime as ort
from edgedec.memory.meter import MemoryMeter
from edgedec.reference.float_profile.ops.linear import _product as reference_product
from edgedec.reference.float_profile.ops.quantize_activation import quantize_rows
from edgedec.runtime.kernels import CODE_PATHS, load
from edgedec.runtime.kernels.products.int8 import int8_matmul
from edgedec.runtime.kernels.recipe import COMMON, KernelBuildError, build, find_compiler
from edgedec.runtime.kernels.sessions.operator import INT8
from edgedec.runtime.kernels.sessions.registration import DOMAIN, register
from edgedec.schemes import Int8Weight

F32 = NDArray[np.float32]
KERNELS = load()
USABLE = [path for path in CODE_PATHS if KERNELS is not None and KERNELS.usable(path)]
needs_library = pytest.mark.skipif(KERNELS is None, reason="the kernels' library was not built (no C++ compiler)")


@dataclass(frozen=True, kw_only=True)
class Case:
    codes: NDArray[np.int8]  # [outputs, inputs]
    by_rows: bool
    scales: F32
    bias: F32 | None
    x: NDArray[np.int8]  # [tokens, inputs]
    token_scales: F32

    def expected(self) -> F32:
        """Compute exact int32 sums, then float32 in the order that ``int8.hpp`` defines."""
        exact = self.x.astype(np.int32) @ self.codes.T.astype(np.int32)
        out = exact.astype(np.float32) * self.token_scales[:, None] * self.scales
        return out if self.bias is None else out + self.bias

    def stored(self) -> NDArray[np.int8]:
        return np.ascontiguousarray(self.codes if self.by_rows else self.codes.T)


def make(seed: int, *, outputs: int, inputs: int, tokens: int, by_rows: bool, bias: bool = False) -> Case:
    """Draw random codes, -128 too. Of three or more rows or tokens, one is zero, one saturates up and one down."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(-128, 128, (outputs, inputs)).astype(np.int8)
    x = rng.integers(-127, 128, (tokens, inputs)).astype(np.int8)
    for array, values in ((codes, (0, 127, -128)), (x, (0, 127, -127))):
        if len(array) >= 3:
            for row, value in zip(rng.permutation(len(array))[:3], values, strict=True):
                array[row] = value
    return Case(
        codes=codes,
        by_rows=by_rows,
        scales=rng.normal(size=outputs).astype(np.float32),
        bias=rng.normal(size=outputs).astype(np.float32) if bias else None,
        x=x,
        token_scales=rng.uniform(1e-4, 2, tokens).astype(np.float32),
    )


def sweep() -> list[Case]:
    """Yield every number of tokens 1..32 in both orders, with sizes that take all their values."""
    widths = (1, 2, 7, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 300, 1001)
    heights = (1, 5, 16, 31, 63, 64, 65, 130, 200)
    cases: list[Case] = []
    for tokens in range(1, 33):
        for by_rows in (False, True, False, True):
            number = len(cases)
            outputs, inputs = heights[number % len(heights)], widths[number % len(widths)]
            cases.append(
                make(number, outputs=outputs, inputs=inputs, tokens=tokens, by_rows=by_rows, bias=number % 3 == 0)
            )
    return cases


def tiles() -> list[Case]:
    """Return cases by rows whose widths are whole tiles of 64 columns, up to more than the kernels arrange at a time."""
    sizes = ((5, 16, 64), (16, 50, 192), (17, 33, 4096), (32, 130, 128), (33, 47, 64), (70, 16, 192), (6, 20, 4160))
    return [
        make(number, outputs=outputs, inputs=inputs, tokens=tokens, by_rows=True, bias=number % 2 == 0)
        for number, (tokens, outputs, inputs) in enumerate(sizes)
    ]


def run(case: Case, code_path: str | None = None, *, parts: int = 1) -> F32:
    """Run the library's product, with its outputs dealt to ``parts`` callers like to threads."""
    assert KERNELS is not None
    outputs = len(case.codes)
    out = np.full((len(case.x), outputs), np.nan, np.float32)
    arguments = (case.x, case.token_scales, case.stored(), case.scales)
    for part in range(parts):
        rows = range(part * outputs // parts, (part + 1) * outputs // parts)
        int8_matmul(KERNELS, *arguments, by_rows=case.by_rows, bias=case.bias, code_path=code_path, rows=rows, out=out)
    return out


def same(actual: F32, expected: F32) -> bool:
    return actual.shape == expected.shape and actual.tobytes() == expected.tobytes()


@needs_library
@pytest.mark.parametrize("code_path", USABLE)
def test_every_number_of_tokens_is_exact_in_both_orders(code_path: str) -> None:
    for number, case in enumerate([*sweep(), *tiles()]):
        assert same(run(case, code_path), case.expected()), f"case {number}"


@pytest.mark.thorough(sample=1)
@needs_library
@pytest.mark.parametrize("code_path", USABLE)
@given(
    seed=st.integers(0, 2**32),
    outputs=st.integers(1, 600),
    inputs=st.integers(1, 300),
    tokens=st.integers(0, 20),
    by_rows=st.booleans(),
    bias=st.booleans(),
)
def test_any_sizes_are_exact(
    code_path: str, seed: int, outputs: int, inputs: int, tokens: int, by_rows: bool, bias: bool
) -> None:
    case = make(seed, outputs=outputs, inputs=inputs, tokens=tokens, by_rows=by_rows, bias=bias)
    assert same(run(case, code_path), case.expected())


def long_rows() -> list[Case]:
    """Return the longest rows allowed, saturating: 131,071 x 127 x 128 is near 2^31, and float32 is exact to 2^24."""
    cases = []
    for by_rows in (False, True):
        for tokens in (1, 2, 9):
            case = make(tokens, outputs=18, inputs=2**17 - 1, tokens=tokens, by_rows=by_rows)
            case.codes[0], case.codes[17] = -128, 127
            case.x[0] = 127
            case.x[-1] = -127
            cases.append(case)
    return cases


@pytest.mark.thorough(sample=1)
@needs_library
@pytest.mark.parametrize("code_path", USABLE)
def test_saturating_rows_of_the_largest_length_are_exact(code_path: str) -> None:
    for case in long_rows():
        assert same(run(case, code_path), case.expected())


@needs_library
@pytest.mark.parametrize("code_path", USABLE)
@pytest.mark.parametrize("by_rows", [False, True])
def test_a_token_has_the_same_bits_in_any_pass_and_on_any_number_of_threads(code_path: str, by_rows: bool) -> None:
    case = make(2, outputs=1100, inputs=517, tokens=32, by_rows=by_rows, bias=True)
    whole = run(case, code_path)
    for first, last in ((0, 1), (3, 5), (7, 20), (31, 32), (8, 16)):
        part = replace(case, x=case.x[first:last], token_scales=case.token_scales[first:last])
        assert same(run(part, code_path), whole[first:last])
    for parts in (2, 3, 7):
        assert same(run(case, code_path, parts=parts), whole)


def before_a_wall(array: NDArray[np.int8]) -> NDArray[np.int8]:
    """Copy the array so that its last byte is the last readable one: the next page is not mapped."""
    pages = -(-array.nbytes // mmap.PAGESIZE)
    memory = np.frombuffer(mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE), np.int8)
    wall = memory.ctypes.data + pages * mmap.PAGESIZE
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(wall), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    copy = memory[pages * mmap.PAGESIZE - array.nbytes : pages * mmap.PAGESIZE].reshape(array.shape)
    copy[...] = array
    return copy


@needs_library
@pytest.mark.skipif(sys.platform == "win32", reason="pages are forbidden with mprotect")
@pytest.mark.parametrize("code_path", USABLE)
@pytest.mark.parametrize("by_rows", [False, True])
def test_nothing_past_the_matrix_is_read(code_path: str, by_rows: bool) -> None:
    """Check this because a mapped file may end where the matrix does; reading further would end this process."""
    assert KERNELS is not None
    for outputs, inputs in ((1, 1), (1, 77), (77, 1), (63, 9), (64, 8), (65, 64), (130, 33), (200, 100), (3, 1601)):
        for tokens in (1, 2, 3, 8):
            case = make(1, outputs=outputs, inputs=inputs, tokens=tokens, by_rows=by_rows)
            stored = before_a_wall(case.stored())
            arguments = (case.x, case.token_scales, stored, case.scales)
            actual = int8_matmul(KERNELS, *arguments, by_rows=by_rows, code_path=code_path)
            assert same(actual, case.expected())


@needs_library
@pytest.mark.parametrize("code_path", USABLE)
def test_denormal_infinite_and_missing_scales_follow_numpy(code_path: str) -> None:
    case = make(4, outputs=20, inputs=64, tokens=4, by_rows=True)
    odd = np.array([2.0**-149, 2.0**-130, np.inf, np.nan], np.float32)
    case = replace(case, token_scales=odd)
    with np.errstate(invalid="ignore"):
        expected = case.expected()
    actual = run(case, code_path)
    assert same(actual[:2], expected[:2])
    assert actual[:2].any()  # denormals are not flushed
    assert np.array_equal(actual[2:], expected[2:], equal_nan=True)


@needs_library
@pytest.mark.parametrize("by_rows", [False, True])
def test_matches_the_reference_executor(by_rows: bool) -> None:
    case = make(3, outputs=70, inputs=300, tokens=5, by_rows=by_rows)
    weight = Int8Weight(codes=case.codes, scale=case.scales)
    assert same(run(case), reference_product((case.x, case.token_scales[:, None]), weight))


@needs_library
def test_bad_arguments_are_refused() -> None:
    assert KERNELS is not None
    case = make(5, outputs=20, inputs=70, tokens=2, by_rows=True)
    right: dict[str, Any] = {
        **{"x": case.x, "token_scales": case.token_scales, "codes": case.codes, "scales": case.scales},
        "by_rows": True,
    }
    wide = np.zeros((1, 2**17), np.int8)
    low = case.x.copy()
    low[1, 69] = -128
    attacks: list[tuple[dict[str, Any], str]] = [
        ({"by_rows": False}, r"codes must be contiguous int8 \(70, 70\), not int8 \(20, 70\)"),
        ({"codes": case.codes.T}, r"codes must be contiguous int8 \(70, 70\)"),
        ({"codes": case.codes.view(np.uint8)}, "codes must be contiguous int8"),
        ({"codes": np.asfortranarray(case.codes)}, "codes must be contiguous int8"),
        ({"scales": case.scales[:-1]}, r"scales must be contiguous float32 \(20,\)"),
        ({"token_scales": case.token_scales[:1]}, r"token_scales must be contiguous float32 \(2,\)"),
        ({"bias": np.ones(19, np.float32)}, r"bias must be contiguous float32 \(20,\)"),
        ({"out": np.empty((2, 21), np.float32)}, "out must be contiguous float32"),
        ({"rows": range(21)}, "there are no such outputs"),
        ({"rows": range(-1, 3)}, "there are no such outputs"),
        ({"code_path": "avx9"}, "avx9 is no code path"),
        ({"x": low}, "activations must be -127 to 127"),
        (
            {"x": wide, "codes": wide, "scales": np.ones(1, np.float32), "token_scales": np.ones(1, np.float32)},
            "2\\^17",
        ),
    ]
    for changes, message in attacks:
        with pytest.raises(EdgedecError, match=message):
            int8_matmul(KERNELS, **(right | changes))


def packed_case(case: Case) -> bytes:
    """Return the input of int8_driver.cpp: five int64, then the arrays."""
    sizes = (*case.codes.shape, case.by_rows, len(case.x), case.bias is not None)
    arrays = (case.stored(), case.scales, case.x, case.token_scales, case.bias)
    return struct.pack("<5q", *sizes) + b"".join(array.tobytes() for array in arrays if array is not None)


def run_driver(command: Sequence[str], cases: Sequence[Case]) -> list[F32]:
    process = subprocess.run(command, input=b"".join(map(packed_case, cases)), capture_output=True, check=False)
    assert process.returncode == 0, process.stderr.decode()
    results, start = [], 0
    for case in cases:
        count = len(case.x) * len(case.codes)
        results.append(np.frombuffer(process.stdout, "<f4", count, start).reshape(len(case.x), -1))
        start += 4 * count
    assert start == len(process.stdout)
    return results


def foreign_driver(processor: str, folder: Path) -> list[str]:
    """Return the command that runs the kernels for another processor; skip where tools are missing."""
    source, program = Path(__file__).with_name("int8_driver.cpp"), folder / processor
    try:
        if processor == "aarch64":
            compiler, emulator = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64")
            if not compiler or not emulator:
                pytest.skip("needs g++-aarch64-linux-gnu and qemu-user")
            messages = build([compiler], program, driver=source, units=COMMON)
            command = [emulator, "-cpu", "max", str(program)]
        else:
            native = find_compiler()
            if not native or not Path("/usr/include/simde/x86/avx512/dpbusd.h").exists():
                pytest.skip("needs a C++ compiler and libsimde-dev")
            # SIMDe uses the real instructions where the compiler may. Its headers warn; the native build must not.
            options = ["-DEDGEDEC_EMULATE_AVX512", "-mno-avx512f", "-w", "-Wno-psabi"]
            messages = build(native, program, driver=source, units=COMMON, extra=options)
            command = [str(program)]
    except KernelBuildError as error:
        pytest.fail(str(error))
    assert messages == ""
    return command


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("processor", "code_paths"),
    [("aarch64", ["neon", "neon_dotprod", "neon_i8mm", "scalar"]), ("simde", ["avx512vnni", "amx"])],
)
def test_paths_of_other_processors_are_exact_under_emulation(
    processor: str, code_paths: list[str], tmp_path: Path
) -> None:
    command = foreign_driver(processor, tmp_path)
    wide = [
        make(8, outputs=5000, inputs=70, tokens=tokens, by_rows=by_rows, bias=True)
        for tokens in (1, 2, 3, 5)
        for by_rows in (False, True)
    ]
    cases = [*sweep(), *tiles(), *wide, *long_rows()]
    for code_path in code_paths:
        for number, (case, actual) in enumerate(zip(cases, run_driver([*command, code_path], cases), strict=True)):
            assert same(actual, case.expected()), f"{code_path}, case {number}"


# --- The operator in ONNX Runtime ---


@dataclass(frozen=True, kw_only=True)
class Matrix:
    weight: Int8Weight
    by_rows: bool
    bias: F32 | None

    def product(self, x: F32) -> F32:
        out = reference_product(quantize_rows(x), self.weight)
        return out if self.bias is None else out + self.bias


def matrix(seed: int, outputs: int, inputs: int, *, by_rows: bool = False, bias: bool = False) -> Matrix:
    rng = np.random.default_rng(seed)
    codes = rng.integers(-127, 128, (outputs, inputs), np.int8)
    scale = rng.uniform(0.01, 0.02, outputs).astype(np.float32)
    extra = rng.normal(size=outputs).astype(np.float32) if bias else None
    return Matrix(weight=Int8Weight(codes=codes, scale=scale), by_rows=by_rows, bias=extra)


def session(matrices: Sequence[Matrix], *, threads: int = 1, **changes: Any) -> ort.InferenceSession:
    """Return one node with all the matrices; ``changes`` forges attributes, and ``loose`` makes weights inputs of the
    session.
    """
    assert KERNELS is not None
    names, values = ["x"], []
    for number, item in enumerate(matrices):
        codes = item.weight.codes if item.by_rows else np.ascontiguousarray(item.weight.codes.T)
        parts: list[NDArray[Any]] = [codes, item.weight.scale, *([] if item.bias is None else [item.bias])]
        for part, value in enumerate(parts):
            names.append(f"w{number}.{part}")
            values.append(numpy_helper.from_array(value, names[-1]))
    loose = changes.pop("loose", False)
    attributes = {
        "columns": matrices[0].weight.codes.shape[1],
        "rows": [len(item.weight.codes) for item in matrices],
        "by_rows": [int(item.by_rows) for item in matrices],
        "biases": [int(item.bias is not None) for item in matrices],
        **changes,
    }
    outputs = [f"y{number}" for number in range(len(matrices))]
    node = helper.make_node(INT8, names, outputs, name="node", domain=DOMAIN, **attributes)
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)]
        + ([helper.make_tensor_value_info(v.name, v.data_type, list(v.dims)) for v in values] if loose else []),
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [] if loose else values,
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, threads
    register(options, KERNELS)
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def activations(seed: int, tokens: int, width: int) -> F32:
    x = np.random.default_rng(seed).normal(size=(1, tokens, width)).astype(np.float32)
    if tokens > 2:
        x[0, 1] = 0
        x[0, 2] = -3
    return x


def check(outputs: Sequence[F32], matrices: Sequence[Matrix], x: F32) -> None:
    assert len(outputs) == len(matrices)
    for output, item in zip(outputs, matrices, strict=True):
        assert output.shape == (1, x.shape[1], len(item.weight.codes))
        assert output[0].tobytes() == item.product(x[0]).tobytes()


QKV = (matrix(1, 700, 515, bias=True), matrix(2, 130, 515, by_rows=True), matrix(3, 77, 515, by_rows=True, bias=True))


@pytest.mark.thorough
@needs_library
@pytest.mark.parametrize("threads", [1, 2])
def test_fused_matrices_are_exact_for_every_number_of_tokens(threads: int) -> None:
    run_session = session(QKV, threads=threads)
    x = activations(0, 32, 515)
    whole = run_session.run(None, {"x": x})
    for tokens in range(1, 33):
        outputs = run_session.run(None, {"x": x[:, :tokens]})
        check(outputs, QKV, x[:, :tokens])
        # A token has the same bits as in the widest pass.
        assert all(output.tobytes() == wide[:, :tokens].tobytes() for output, wide in zip(outputs, whole, strict=True))


@pytest.mark.thorough
@needs_library
@given(
    seed=st.integers(0, 2**32),
    rows=st.lists(st.integers(1, 700), min_size=1, max_size=4),
    columns=st.integers(1, 400),
    tokens=st.integers(1, 12),
)
def test_any_matrices_are_exact(seed: int, rows: list[int], columns: int, tokens: int) -> None:
    matrices = [matrix(seed + i, n, columns, by_rows=(seed >> i) % 2 == 0, bias=i % 2 == 0) for i, n in enumerate(rows)]
    x = activations(seed, tokens, columns)
    check(session(matrices, threads=1 + seed % 2).run(None, {"x": x}), matrices, x)


@pytest.mark.thorough
@needs_library
def test_threads_may_share_a_session() -> None:
    shared = session(QKV, threads=2)
    inputs = [activations(seed, 1 + seed % 9, 515) for seed in range(40)]
    with ThreadPoolExecutor(4) as pool:
        for x, outputs in zip(inputs, pool.map(lambda x: shared.run(None, {"x": x}), inputs), strict=True):
            check(outputs, QKV, x)


@needs_library
def test_no_tokens_and_any_rank_are_computed() -> None:
    run_session = session(QKV)
    empty = run_session.run(None, {"x": np.zeros((1, 0, 515), np.float32)})
    assert [array.shape for array in empty] == [(1, 0, 700), (1, 0, 130), (1, 0, 77)]
    x = activations(5, 6, 515)
    for shape, outs in (((6, 515), (6, 130)), ((2, 3, 515), (2, 3, 130))):
        outputs = run_session.run(None, {"x": x.reshape(shape)})
        assert outputs[1].shape == outs
        assert outputs[1].tobytes() == QKV[1].product(x[0]).tobytes()
    assert run_session.run(None, {"x": x[0, 0]})[1].tobytes() == QKV[1].product(x[0, :1]).tobytes()


@needs_library
def test_infinite_and_denormal_activations_follow_numpy() -> None:
    x = activations(6, 5, 515)
    x[0, 0, 7], x[0, 3, 514] = np.inf, np.nan
    x[0, 4] *= np.float32(2.0**-140)
    for output, item in zip(session(QKV).run(None, {"x": x}), QKV, strict=True):
        assert np.isnan(output[0, [0, 3]]).all()
        finite = [1, 2, 4]
        assert output[0, finite].tobytes() == item.product(x[0, finite]).tobytes()


@needs_library
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"columns": 514}, "node: its input 1 must hold 359800 int8, not 360500 of type 3"),
        ({"rows": [700, 77, 130]}, "its input 4 must hold 39655 int8"),
        ({"rows": [700, 130]}, "need one entry per output"),
        ({"by_rows": [1, 1, 1]}, r"its input 1 must be \[700, 515\]"),
        ({"by_rows": [0, 0, 1]}, r"its input 4 must be \[515, 130\]"),
        ({"by_rows": [0, 1]}, "need one entry per output"),
        ({"biases": [0, 0, 1]}, "its input 3 must hold 66950 int8, not 700 of type 1"),
        ({"biases": [1, 0, 0]}, "has more inputs than its attributes say"),
        ({"biases": [1, 1, 1]}, "node: its input 6 must hold 130 float32"),
        ({"loose": True}, "its input 1 must be an initializer"),
        ({"columns": 0}, "inputs must be 1 to"),
        ({"columns": 2**17}, "inputs must be 1 to 2\\^17 - 1"),
        ({"rows": [-1, 130, 77]}, "outputs must be 1 to"),
    ],
)
def test_invalid_nodes_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match="Int8MatMul node: .*" + message.removeprefix("node: ")):
        session(QKV, **changes)


@needs_library
def test_activations_of_another_width_are_refused() -> None:
    run_session = session(QKV)
    with pytest.raises(Exception, match="Int8MatMul node: its activations must be float32 with 515 columns"):
        run_session.run(None, {"x": activations(0, 1, 514)})


MAPPED = """
import sys
from pathlib import Path
import numpy as np, onnxruntime as ort
from edgedec.memory.meter import MemoryMeter
from edgedec.runtime.kernels import load
from edgedec.runtime.kernels.sessions.registration import register

folder, columns = Path(sys.argv[1]), int(sys.argv[2])
kernels = load()
x = np.ones((1, 1, columns), np.float32)
options = ort.SessionOptions()
options.log_severity_level, options.intra_op_num_threads, options.enable_cpu_mem_arena = 4, 2, False
options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
register(options, kernels)
model = (folder / "model.onnx").read_bytes()
with MemoryMeter() as anonymous, MemoryMeter((folder,)) as all_of_it:
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    loaded = all_of_it.mark()
    session.run(None, {"x": x})
    used = all_of_it.mark()
print(anonymous.peak_bytes, loaded, used)
"""


@pytest.mark.thorough
@needs_library
@pytest.mark.skipif(not MemoryMeter().available, reason="the meter needs Linux' /proc/self/smaps_rollup")
@pytest.mark.parametrize("by_rows", [False, True])
def test_external_codes_are_mapped_and_never_copied(by_rows: bool, tmp_path: Path) -> None:
    """Share 48 MiB between two nodes, like an embedding and a tied head: once in memory, as pages of the file."""
    rows, columns = 32768, 1536
    nbytes = rows * columns
    shape = [rows, columns] if by_rows else [columns, rows]
    (tmp_path / "weights").write_bytes(bytes(nbytes) + np.ones(rows, np.float32).tobytes())
    weights = []
    for name, dtype, dims, offset in (
        ("codes", TensorProto.INT8, shape, 0),
        ("scales", TensorProto.FLOAT, [rows], nbytes),
    ):
        weights.append(TensorProto(name=name, dims=dims, data_type=dtype, data_location=TensorProto.EXTERNAL))
        for key, value in (("location", "weights"), ("offset", offset)):
            weights[-1].external_data.append(StringStringEntryProto(key=key, value=str(value)))
    attributes: dict[str, Any] = {"columns": columns, "rows": [rows], "by_rows": [int(by_rows)], "biases": [0]}
    nodes = [helper.make_node(INT8, ["x", "codes", "scales"], [y], domain=DOMAIN, **attributes) for y in ("y0", "y1")]
    graph = helper.make_graph(
        nodes,
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)],
        [helper.make_tensor_value_info(y, TensorProto.FLOAT, None) for y in ("y0", "y1")],
        weights,
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    command = [sys.executable, "-c", MAPPED, str(tmp_path), str(columns)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    anonymous, loaded, touched = map(int, process.stdout.split())
    assert anonymous < 4 << 20  # bytes of the session itself
    assert loaded < 8 << 20  # nothing is read before it is used
    assert nbytes <= touched < nbytes + (6 << 20)
