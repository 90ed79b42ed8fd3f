"""Compare the ternary product of every code path with NumPy's integers, to the bit.

Paths of other processors are compiled too and run under emulation if there is one: AArch64 with Debian's cross compiler
and qemu-user, AVX-512 VNNI with SIMDe (libsimde-dev), which executes its intrinsics one by one, and the
tiles of AMX with ``amx.hpp``.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from edgedec.errors import EdgedecError
from edgedec.reference.float_profile.ops.linear import _ternary as reference_product
from edgedec.reference.float_profile.ops.quantize_activation import quantize_rows
from edgedec.runtime.kernels import CODE_PATHS, KERNEL_NAMES, Kernels, load
from edgedec.runtime.kernels.recipe import COMMON, KernelBuildError, build, find_compiler
from edgedec.schemes import TernaryScheme, TernaryWeight

F32 = NDArray[np.float32]
KERNELS = load()
USABLE = [path for path in CODE_PATHS if KERNELS is not None and KERNELS.usable(path)]
needs_library = pytest.mark.skipif(KERNELS is None, reason="the kernels' library was not built (no C++ compiler)")


@dataclass(frozen=True, kw_only=True)
class Case:
    scheme: TernaryScheme
    trits: NDArray[np.int8]  # [planes, outputs, inputs]
    scales: NDArray[Any]  # in the layout and of the dtype of the scheme
    bias: F32 | None
    x: NDArray[np.int8]  # [tokens, inputs]
    token_scales: F32  # [tokens]

    @property
    def shape(self) -> tuple[int, int]:
        return self.trits.shape[1], self.trits.shape[2]

    def expected(self) -> F32:
        """Compute exact int32 sums, then float32 in the order that ``ternary.hpp`` defines."""
        planes, outputs, inputs = self.trits.shape
        size = self.scheme.group_size or inputs
        total = np.zeros((len(self.x), outputs), np.float32)
        for plane in range(planes):
            for group, start in enumerate(range(0, inputs, size)):
                part = slice(start, start + size)
                exact = self.x[:, part].astype(np.int32) @ self.trits[plane, :, part].T.astype(np.int32)
                factor = self.scales[plane, :, group] if self.scheme.group_size else self.scales[0]
                total += exact.astype(np.float32) * factor.astype(np.float32)
        total *= self.token_scales[:, None]
        return total if self.bias is None else total + self.bias


def make(
    seed: int,
    *,
    outputs: int,
    inputs: int,
    tokens: int,
    planes: int = 1,
    group_size: int = 0,
    half_scales: bool = False,
    bias: bool = False,
) -> Case:
    """Draw random trits and codes. Of three or more tokens, one is zero, one all 127 and one all -127."""
    rng = np.random.default_rng(seed)
    scheme = TernaryScheme(planes=planes, group_size=group_size, half_scales=half_scales)
    trits = rng.integers(-1, 2, (planes, outputs, inputs)).astype(np.int8)
    trits[:, rng.integers(outputs)] = 0
    trits[:, rng.integers(outputs)] = 1
    x = rng.integers(-127, 128, (tokens, inputs)).astype(np.int8)
    if tokens >= 3:
        for token, value in zip(rng.permutation(tokens)[:3], (0, 127, -127), strict=True):
            x[token] = value
    return Case(
        scheme=scheme,
        trits=trits,
        scales=rng.normal(size=scheme.parts((outputs, inputs))["scale"].shape).astype(scheme.scale_dtype),
        bias=rng.normal(size=outputs).astype(np.float32) if bias else None,
        x=x,
        token_scales=rng.uniform(1e-4, 2, tokens).astype(np.float32),
    )


def sweep() -> list[Case]:
    """Yield every number of tokens 1..32 with sizes, groups and planes that take all their values."""
    widths = (1, 15, 16, 17, 32, 33, 96, 100, 127, 129, 255, 257, 300, 1001)
    cases: list[Case] = []
    for tokens in range(1, 33):
        for group_size in (0, 32, 64, 128):
            number = len(cases)
            cases.append(
                make(
                    number,
                    outputs=(1, 5, 16, 17, 31, 48, 50)[number % 7],
                    inputs=widths[number % len(widths)],
                    tokens=tokens,
                    planes=1 + number % 3,
                    group_size=group_size,
                    half_scales=group_size in ((64,) if tokens % 2 else (32, 128)),
                    bias=number % 2 == 0,
                )
            )
    return cases


def many_tokens() -> list[Case]:
    """Return cases of more than 32 tokens, and of widths at the edges of 64 columns, in all groups."""
    return [
        make(
            number,
            outputs=outputs,
            inputs=inputs,
            tokens=tokens,
            planes=1 + number % 2,
            group_size=group_size,
            half_scales=group_size > 0 and outputs == 16,
        )
        for number, (tokens, outputs, inputs, group_size) in enumerate(
            product((33, 48, 65), (16, 35), (63, 64, 224), (0, 32, 64, 128))
        )
    ]


def run(case: Case, code_path: str | None = None, *, unsigned: bool = False, parts: int = 1) -> F32:
    """Run the library's product, with its tiles dealt to ``parts`` callers like to threads."""
    assert KERNELS is not None
    codes = KERNELS.pack(case.scheme.pack(case.trits), case.scales, case.shape, case.scheme)
    x = case.x.view(np.uint8) ^ np.uint8(128) if unsigned else case.x
    out = np.full((len(x), case.shape[0]), np.nan, np.float32)
    count = KERNELS.tiles(case.shape)
    for part in range(parts):
        tiles = range(part * count // parts, (part + 1) * count // parts)
        arguments = (x, case.token_scales, codes, case.scales, case.shape[0], case.scheme)
        KERNELS.matmul(*arguments, bias=case.bias, code_path=code_path, tiles=tiles, out=out)
    return out


def same(actual: F32, expected: F32) -> bool:
    return actual.shape == expected.shape and actual.tobytes() == expected.tobytes()


@needs_library
@pytest.mark.parametrize("code_path", USABLE)
def test_every_number_of_tokens_and_kind_of_matrix_is_exact(code_path: str) -> None:
    for number, case in enumerate(sweep()):
        assert same(run(case, code_path, unsigned=number % 2 == 1), case.expected()), f"case {number}"


@pytest.mark.thorough(sample=1)
@needs_library
@pytest.mark.parametrize("code_path", USABLE)
def test_passes_of_many_tokens_are_exact(code_path: str) -> None:
    for number, case in enumerate(many_tokens()):
        assert same(run(case, code_path), case.expected()), f"case {number}"


@pytest.mark.thorough(sample=1)
@needs_library
@pytest.mark.parametrize("code_path", USABLE)
@given(
    seed=st.integers(0, 2**32),
    outputs=st.integers(1, 70),
    inputs=st.integers(1, 700),
    tokens=st.integers(0, 20),
    planes=st.integers(1, 3),
    group_size=st.sampled_from((0, 32, 64, 128)),
    half_scales=st.booleans(),
    bias=st.booleans(),
    unsigned=st.booleans(),
)
def test_any_sizes_are_exact(
    code_path: str,
    seed: int,
    outputs: int,
    inputs: int,
    tokens: int,
    planes: int,
    group_size: int,
    half_scales: bool,
    bias: bool,
    unsigned: bool,
) -> None:
    sizes = {"outputs": outputs, "inputs": inputs, "tokens": tokens, "planes": planes, "group_size": group_size}
    case = make(seed, half_scales=half_scales and group_size > 0, bias=bias, **sizes)
    assert same(run(case, code_path, unsigned=unsigned), case.expected())


@pytest.mark.thorough(sample=3)
@needs_library
@pytest.mark.parametrize("code_path", USABLE)
@pytest.mark.parametrize("value", [-128, -127, 127])
def test_saturating_rows_past_the_exact_floats_are_rounded_once(code_path: str, value: int) -> None:
    # 140,000 x 127 > 2^24: the int32 sum must be exact before it is rounded once.
    case = make(1, outputs=17, inputs=140_001, tokens=9)
    trits = case.trits.copy()
    trits[0, 0], trits[0, 16] = 1, -1
    x = case.x.copy()
    x[2] = value
    x[5, ::2] = value
    case = replace(case, trits=trits, x=x)
    assert same(run(case, code_path), case.expected())


@needs_library
@pytest.mark.parametrize("code_path", USABLE)
def test_a_token_has_the_same_bits_in_any_pass_and_on_any_number_of_threads(code_path: str) -> None:
    for group_size in (0, 64):
        case = make(2, outputs=100, inputs=517, tokens=32, planes=2, group_size=group_size, bias=True)
        whole = run(case, code_path)
        for first, last in ((0, 1), (3, 5), (7, 20), (31, 32), (8, 16)):
            part = replace(case, x=case.x[first:last], token_scales=case.token_scales[first:last])
            assert same(run(part, code_path), whole[first:last])
        for parts in (2, 3, 7):
            assert same(run(case, code_path, parts=parts), whole)


@needs_library
def test_matches_the_reference_executor() -> None:
    for group_size in (0, 32, 128):
        case = make(3, outputs=40, inputs=300, tokens=5, planes=3, group_size=group_size)
        weight = TernaryWeight(trits=case.trits, scale=case.scales, group_size=group_size)
        assert same(run(case), reference_product(case.x, case.token_scales[:, None], weight))


@needs_library
@pytest.mark.parametrize("code_path", USABLE)
def test_denormal_infinite_and_missing_scales_follow_numpy(code_path: str) -> None:
    case = make(4, outputs=20, inputs=64, tokens=4)
    odd = np.array([2.0**-149, 2.0**-130, np.inf, np.nan], np.float32)
    with np.errstate(invalid="ignore"):
        expected = replace(case, token_scales=odd).expected()
    actual = run(replace(case, token_scales=odd), code_path)
    assert same(actual[:2], expected[:2])
    assert actual[:2].any()  # denormals are not flushed
    assert np.array_equal(actual[2:], expected[2:], equal_nan=True)


def activations(kernels: Kernels, x: F32) -> None:
    expected_codes, expected_scales = quantize_rows(x)
    for code_path in USABLE:
        codes, scales = kernels.quantize(x, code_path)
        assert codes.tobytes() == expected_codes.tobytes()
        assert same(scales, expected_scales)


@needs_library
@given(
    seed=st.integers(0, 2**32),
    tokens=st.integers(0, 5),
    width=st.integers(1, 200),
    exponent=st.integers(-149, 120),
    halves=st.booleans(),
)
def test_activations_are_quantized_like_by_the_reference(
    seed: int, tokens: int, width: int, exponent: int, halves: bool
) -> None:
    assert KERNELS is not None
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(tokens, width))
    if halves:  # ties: multiples of a half with an absmax of 127
        values = rng.integers(-253, 254, (tokens, width)) / 2
        values[:, 0] = 127
    x = (values * 2.0**exponent).astype(np.float32)
    if tokens > 1:
        x[1] = 0
    activations(KERNELS, x)


@needs_library
def test_activations_that_are_not_finite_spoil_their_own_token_only() -> None:
    assert KERNELS is not None
    x = np.ones((4, 40), np.float32)
    x[1, 3], x[2, 39] = np.inf, np.nan
    codes, scales = KERNELS.quantize(x)
    assert np.array_equal(np.isnan(scales[:, 0]), [False, True, True, False])
    assert not codes[1:3].any()
    assert (codes[[0, 3]] == 127).all()


@needs_library
def test_bad_arguments_are_refused() -> None:
    assert KERNELS is not None
    case = make(5, outputs=20, inputs=70, tokens=2, group_size=32)
    stored = case.scheme.pack(case.trits)
    codes = KERNELS.pack(stored, case.scales, case.shape, case.scheme)
    with pytest.raises(EdgedecError, match=r"scale must be contiguous float32 \(1, 20, 3\), not float16 \(1, 20, 3\)"):
        KERNELS.pack(stored, case.scales.astype(np.float16), case.shape, case.scheme)
    with pytest.raises(EdgedecError, match=r"scale must be contiguous float32 \(1, 20, 3\), not None"):
        KERNELS.pack(stored, None, case.shape, case.scheme)
    single = TernaryScheme()
    with pytest.raises(EdgedecError, match="a matrix without groups needs one scale"):
        KERNELS.matmul(case.x, case.token_scales, KERNELS.pack(stored, None, case.shape, single), None, 20, single)
    with pytest.raises(EdgedecError, match="are not a packed"):
        KERNELS.matmul(case.x, case.token_scales, codes[:-1], None, 20, case.scheme)
    with pytest.raises(EdgedecError, match="are not a packed"):
        KERNELS.matmul(case.x[:, :-7], case.token_scales, codes, None, 20, case.scheme)
    with pytest.raises(EdgedecError, match="2 tokens need as many scales, not 1"):
        KERNELS.matmul(case.x, case.token_scales[:1], codes, None, 20, case.scheme)
    with pytest.raises(EdgedecError, match="there are no such tiles"):
        KERNELS.matmul(case.x, case.token_scales, codes, None, 20, case.scheme, tiles=range(3))
    with pytest.raises(EdgedecError, match="bias must be contiguous float32"):
        KERNELS.matmul(case.x, case.token_scales, codes, None, 20, case.scheme, bias=np.ones(19, np.float32))
    with pytest.raises(EdgedecError, match="avx9 is no code path"):
        KERNELS.matmul(case.x, case.token_scales, codes, None, 20, case.scheme, code_path="avx9")
    with pytest.raises(EdgedecError, match="inputs must be 1 to 2\\^20"):
        KERNELS.packed_bytes((16, 1 << 21), TernaryScheme())
    stored[0, 17, 1, 2] &= 0xFC
    with pytest.raises(EdgedecError, match="row 17 of plane 0 holds a code that is no trit"):
        KERNELS.pack(stored, case.scales, case.shape, case.scheme)


@needs_library
@pytest.mark.parametrize("half_scales", [False, True])
def test_packing_in_pieces_equals_packing_at_once(half_scales: bool) -> None:
    assert KERNELS is not None
    case = make(6, outputs=90, inputs=200, tokens=1, planes=2, group_size=64, half_scales=half_scales)
    stored = case.scheme.pack(case.trits)
    pieces = (range(2), range(2, 3), range(3, 6))
    packed = [KERNELS.pack(stored, case.scales, case.shape, case.scheme, tiles=tiles) for tiles in pieces]
    assert np.array_equal(np.concatenate(packed), KERNELS.pack(stored, case.scales, case.shape, case.scheme))


LOAD = "from edgedec.runtime.kernels import load; import sys; sys.stdout.write(load().code_path)"


def loaded(kernel: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "EDGEDEC_KERNEL": kernel}
    return subprocess.run([sys.executable, "-c", LOAD], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.thorough(sample=1)
@needs_library
@pytest.mark.parametrize("code_path", USABLE)
def test_the_environment_selects_a_path(code_path: str) -> None:
    process = loaded(code_path)
    assert (process.returncode, process.stdout) == (0, code_path), process.stderr


@needs_library
@pytest.mark.parametrize(
    "kernel",
    ["neon" if "scalar" in USABLE and "neon" not in USABLE else "avx2"],
)
def test_a_path_that_cannot_run_is_an_error(kernel: str) -> None:
    process = loaded(kernel)
    assert process.returncode == 1
    assert f"DeviceError: CPU kernels: EDGEDEC_KERNEL={kernel} is not in a library for this kind" in process.stderr
    assert "usable here: " in process.stderr


@needs_library
def test_an_unknown_path_is_an_error() -> None:
    process = loaded("avx9")
    assert process.returncode == 1
    assert f"UsageError: EDGEDEC_KERNEL must be one of {', '.join(KERNEL_NAMES)}, not 'avx9'" in process.stderr


def packed_case(case: Case) -> bytes:
    """Return the input of driver.cpp: eight int64, then the arrays."""
    outputs, inputs = case.shape
    stored = case.scheme.pack(case.trits)
    row_bytes = stored.shape[2] * stored.shape[3]
    scheme = case.scheme
    forms = (scheme.planes, scheme.group_size, scheme.half_scales)
    sizes = (outputs, inputs, *forms, row_bytes, len(case.x), case.bias is not None)
    arrays = (stored, case.scales, case.x, case.token_scales, case.bias)
    return struct.pack("<8q", *sizes) + b"".join(array.tobytes() for array in arrays if array is not None)


def run_driver(command: Sequence[str], cases: Sequence[Case]) -> list[F32]:
    process = subprocess.run(command, input=b"".join(map(packed_case, cases)), capture_output=True, check=False)
    assert process.returncode == 0, process.stderr.decode()
    results, start = [], 0
    for case in cases:
        count = len(case.x) * case.shape[0]
        results.append(np.frombuffer(process.stdout, "<f4", count, start).reshape(len(case.x), -1))
        start += 4 * count
    assert start == len(process.stdout)
    return results


def foreign_driver(name: str, folder: Path, source: Path) -> list[str]:
    """Return the command that runs a driver of the kernels for another processor; skip where tools are missing."""
    program = folder / name
    try:
        if name == "aarch64":
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
    command = foreign_driver(processor, tmp_path, Path(__file__).with_name("driver.cpp"))
    long = make(7, outputs=17, inputs=140_001, tokens=9)
    long.x[2] = -128
    cases = [*sweep(), *many_tokens(), long]
    cases += [make(8, outputs=33, inputs=70_000, tokens=tokens, bias=True) for tokens in (1, 2)]
    for code_path in code_paths:
        for number, (case, actual) in enumerate(zip(cases, run_driver([*command, code_path], cases), strict=True)):
            assert same(actual, case.expected()), f"{code_path}, case {number}"
