"""Compare the products of int4 and of tied planes on every code path with NumPy's integers, to the bit."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from edgedec.errors import BundleError, EdgedecError
from edgedec.onnx.grid_layout import grid_layout
from edgedec.reference.float_profile.ops.linear import _product as reference_product
from edgedec.reference.float_profile.ops.linear import _ternary as planes_one_by_one
from edgedec.runtime.kernels.products.grid import grid_matmul, pack_grid
from edgedec.schemes import Int4Scheme, TernaryScheme, TernaryWeight
from tests.runtime.kernels.test_ternary import KERNELS, USABLE, foreign_driver, needs_library, same

F32 = NDArray[np.float32]

SCHEMES: tuple[Int4Scheme | TernaryScheme, ...] = (
    Int4Scheme(),
    Int4Scheme(offset=True),
    *(TernaryScheme(planes=planes, group_size=size, tied=True) for planes in (2, 3) for size in (32, 64, 128)),
)


@dataclass(frozen=True, kw_only=True)
class Case:
    scheme: Int4Scheme | TernaryScheme
    parts: Mapping[str, NDArray[Any]]
    shape: tuple[int, int]
    levels: NDArray[np.int32]  # [outputs, inputs]: the integers that are multiplied
    scale: F32  # [outputs, groups]
    minimum: F32 | None  # [outputs, groups]
    bias: F32 | None
    x: NDArray[np.int8]  # [tokens, inputs]
    token_scales: F32  # [tokens]

    def expected(self) -> F32:
        """Compute exact int32 sums, then float32 in the order that ``grid.hpp`` defines."""
        size = self.scheme.group_size
        total = np.zeros((len(self.x), self.shape[0]), np.float32)
        for group, start in enumerate(range(0, self.shape[1], size)):
            x = self.x[:, start : start + size].astype(np.int32)
            exact = x @ self.levels[:, start : start + size].T
            total += exact.astype(np.float32) * self.scale[:, group]
            if self.minimum is not None:
                total -= x.sum(axis=1, dtype=np.int32).astype(np.float32)[:, None] * self.minimum[:, group]
        total *= self.token_scales[:, None]
        return total if self.bias is None else total + self.bias


def make(
    seed: int, scheme: Int4Scheme | TernaryScheme, *, outputs: int, inputs: int, tokens: int, bias: bool = False
) -> Case:
    """Draw random codes and scales. One row has the smallest code, one the largest; some tokens saturate."""
    rng = np.random.default_rng(seed)
    shape, specs = (outputs, inputs), scheme.parts((outputs, inputs))
    minimum, parts = None, {}
    if isinstance(scheme, Int4Scheme):
        codes = rng.integers(0, 16, shape).astype(np.uint8)
        codes[rng.integers(outputs)], codes[rng.integers(outputs)] = 0, 15
        parts["codes"] = scheme.pack(codes)
        levels = codes.astype(np.int32)
        if scheme.offset:
            parts["factors"] = rng.normal(size=specs["factors"].shape).astype(np.float16)
            parts["steps"] = rng.integers(0, 64, specs["steps"].shape).astype(np.uint8)
            of_group = np.arange(scheme.groups(inputs)) // 8
            products = parts["factors"].astype(np.float32)[:, of_group] * parts["steps"].astype(np.float32)
            scale, minimum = products[..., 0], products[..., 1]
        else:
            parts["scale"] = rng.normal(size=specs["scale"].shape).astype(np.float16)
            parts["scale"][0, 0] = 2.0**-24  # the smallest subnormal number
            levels, scale = levels - 8, parts["scale"].astype(np.float32)
    else:
        trits = rng.integers(-1, 2, (scheme.planes, *shape)).astype(np.int8)
        trits[:, rng.integers(outputs)], trits[:, rng.integers(outputs)] = -1, 1
        parts = {"codes": scheme.pack(trits), "scale": rng.normal(size=specs["scale"].shape).astype(np.float32)}
        powers = 3 ** np.arange(scheme.planes)[::-1]
        levels, scale = np.einsum("p,poi->oi", powers, trits.astype(np.int32)).astype(np.int32), parts["scale"][0]
    x = rng.integers(-128, 128, (tokens, inputs)).astype(np.int8)
    if tokens >= 3:
        for token, value in zip(rng.permutation(tokens)[:3], (0, 127, -128), strict=True):
            x[token] = value
    return Case(
        scheme=scheme,
        parts=parts,
        shape=shape,
        levels=levels,
        scale=scale,
        minimum=minimum,
        bias=rng.normal(size=outputs).astype(np.float32) if bias else None,
        x=x,
        token_scales=rng.uniform(1e-4, 2, tokens).astype(np.float32),
    )


def sweep() -> list[Case]:
    """Return every number of tokens 1..17 with every scheme; sizes take all their values."""
    widths = (1, 15, 16, 17, 31, 32, 33, 96, 100, 127, 129, 255, 256, 257, 300, 513, 1001)
    cases: list[Case] = []
    for tokens in range(1, 18):
        for scheme in SCHEMES:
            number = len(cases)
            sizes = {"outputs": (1, 5, 16, 17, 31, 48, 50)[number % 7], "inputs": widths[number % len(widths)]}
            cases.append(make(number, scheme, tokens=tokens, bias=number % 2 == 0, **sizes))
    return cases


def run(case: Case, code_path: str | None = None, *, parts: int = 1) -> F32:
    """Run the library's product, with its tiles dealt to ``parts`` callers like to threads."""
    assert KERNELS is not None
    layout = grid_layout(case.scheme)
    assert layout is not None
    packed = pack_grid("m", case.scheme, case.parts, case.shape)
    out = np.full((len(case.x), case.shape[0]), np.nan, np.float32)
    count = KERNELS.tiles(case.shape)
    for part in range(parts):
        tiles = range(part * count // parts, (part + 1) * count // parts)
        arguments = (KERNELS, case.x, case.token_scales, packed, case.shape[0], layout)
        grid_matmul(*arguments, bias=case.bias, code_path=code_path, tiles=tiles, out=out)
    return out


@needs_library
@pytest.mark.parametrize("code_path", USABLE)
def test_every_number_of_tokens_and_kind_of_matrix_is_exact(code_path: str) -> None:
    for number, case in enumerate(sweep()):
        assert same(run(case, code_path), case.expected()), f"case {number}"


@pytest.mark.thorough(sample=1)
@needs_library
@pytest.mark.parametrize("code_path", USABLE)
@given(
    seed=st.integers(0, 2**32),
    scheme=st.sampled_from(SCHEMES),
    outputs=st.integers(1, 70),
    inputs=st.integers(1, 700),
    tokens=st.integers(0, 20),
    bias=st.booleans(),
)
def test_any_sizes_are_exact(
    code_path: str, seed: int, scheme: Int4Scheme | TernaryScheme, outputs: int, inputs: int, tokens: int, bias: bool
) -> None:
    case = make(seed, scheme, outputs=outputs, inputs=inputs, tokens=tokens, bias=bias)
    assert same(run(case, code_path), case.expected())


@needs_library
@pytest.mark.parametrize("code_path", USABLE)
@pytest.mark.parametrize("value", [-128, 127])
def test_the_largest_codes_and_activations_do_not_overflow(code_path: str, value: int) -> None:
    for number, scheme in enumerate(SCHEMES):
        case = make(number, scheme, outputs=16, inputs=256, tokens=9)
        shape = (16, 256)
        if isinstance(scheme, Int4Scheme):
            parts = {**case.parts, "codes": scheme.pack(np.full(shape, 15, np.uint8))}
            levels = np.full(shape, 15 if scheme.offset else 7, np.int32)
        else:
            parts = {**case.parts, "codes": scheme.pack(np.ones((scheme.planes, *shape), np.int8))}
            levels = np.full(shape, (3**scheme.planes - 1) // 2, np.int32)
        case = replace(case, parts=parts, levels=levels, x=np.full((9, 256), value, np.int8))
        assert same(run(case, code_path), case.expected()), scheme


@needs_library
@pytest.mark.parametrize("code_path", USABLE)
def test_a_token_has_the_same_bits_in_any_pass_and_on_any_number_of_threads(code_path: str) -> None:
    for scheme in SCHEMES:
        case = make(2, scheme, outputs=100, inputs=517, tokens=20, bias=True)
        whole = run(case, code_path)
        for first, last in ((0, 1), (3, 5), (7, 20), (8, 16)):
            part = replace(case, x=case.x[first:last], token_scales=case.token_scales[first:last])
            assert same(run(part, code_path), whole[first:last])
        for parts in (2, 3, 7):
            assert same(run(case, code_path, parts=parts), whole)


@needs_library
def test_matches_the_reference_executor() -> None:
    for scheme in SCHEMES:
        case = make(3, scheme, outputs=40, inputs=300, tokens=5)
        weight = scheme.open("m", case.shape, case.parts)
        assert same(run(case), reference_product((case.x, case.token_scales[:, None]), weight))


@needs_library
def test_folded_planes_equal_planes_one_by_one_where_floats_are_exact() -> None:
    """With scales that are powers of two, no float operation rounds, so the two orders of addition are comparable."""
    for scheme in SCHEMES:
        if not isinstance(scheme, TernaryScheme):
            continue
        case = make(4, scheme, outputs=50, inputs=300, tokens=9)
        scale = (np.float32(2) ** np.random.default_rng(5).integers(-2, 2, case.parts["scale"].shape)).astype(
            np.float32
        )
        case = replace(case, parts={**case.parts, "scale": scale}, token_scales=np.full(9, 0.5, np.float32))
        weight = scheme.open("m", case.shape, case.parts)
        assert isinstance(weight, TernaryWeight)
        free = TernaryWeight(trits=weight.trits, scale=weight.plane_scales(), group_size=scheme.group_size)
        assert same(run(case), planes_one_by_one(case.x, case.token_scales[:, None], free))


@needs_library
def test_bad_arguments_are_refused() -> None:
    assert KERNELS is not None
    case = make(5, Int4Scheme(), outputs=20, inputs=70, tokens=2)
    layout, packed = grid_layout(case.scheme), pack_grid("m", case.scheme, case.parts, case.shape)
    assert layout is not None
    with pytest.raises(EdgedecError, match="packed must be contiguous uint8"):
        grid_matmul(KERNELS, case.x, case.token_scales, packed[:-1], 20, layout)
    with pytest.raises(EdgedecError, match="token_scales must be contiguous float32"):
        grid_matmul(KERNELS, case.x, case.token_scales[:1], packed, 20, layout)
    with pytest.raises(EdgedecError, match="there are no such tiles"):
        grid_matmul(KERNELS, case.x, case.token_scales, packed, 20, layout, tiles=range(3))
    with pytest.raises(EdgedecError, match="avx9 is no code path"):
        grid_matmul(KERNELS, case.x, case.token_scales, packed, 20, layout, code_path="avx9")
    for sizes, message in (
        ((16, 1 << 21, 4, 1, 32), "inputs must be 1 to 2\\^20"),
        ((16, 64, 3, 1, 32), "bits must be 4 or 5"),
        ((16, 64, 4, 3, 32), "the form of scales"),
        ((16, 64, 4, 1, 48), "group_size must be 32, 64 or 128"),
    ):
        with pytest.raises(EdgedecError, match=message):
            KERNELS.call("edgedec_grid_bytes", *sizes)
    tied = make(6, TernaryScheme(planes=2, group_size=32, tied=True), outputs=20, inputs=70, tokens=1)
    codes = tied.parts["codes"].copy()
    codes[1, 17, 1, 2] &= 0xFC
    with pytest.raises(BundleError, match="tensor m: its codes are not trits"):
        pack_grid("m", tied.scheme, {**tied.parts, "codes": codes}, tied.shape)


@needs_library
def test_packing_in_pieces_equals_packing_at_once_and_has_the_size_of_the_library() -> None:
    assert KERNELS is not None
    for scheme in SCHEMES:
        case = make(7, scheme, outputs=90, inputs=333, tokens=1)
        whole = pack_grid("m", scheme, case.parts, case.shape)
        layout = grid_layout(scheme)
        assert layout is not None
        sizes = (*case.shape, layout.bits, layout.form, layout.group_size)
        assert whole.size == KERNELS.call("edgedec_grid_bytes", *sizes) == layout.nbytes(case.shape)
        pieces = []
        for rows in (slice(0, 32), slice(32, 48), slice(48, 90)):
            axis = {name: (slice(None), rows) if isinstance(scheme, TernaryScheme) else rows for name in case.parts}
            parts = {name: np.ascontiguousarray(array[axis[name]]) for name, array in case.parts.items()}
            pieces.append(pack_grid("m", scheme, parts, (rows.stop - rows.start, 333)))
        assert np.array_equal(np.concatenate(pieces), whole)


def packed_case(case: Case) -> bytes:
    """Return the input of grid_driver.cpp: seven int64, then the arrays."""
    layout = grid_layout(case.scheme)
    assert layout is not None
    sizes = (*case.shape, layout.bits, layout.form, layout.group_size, len(case.x), case.bias is not None)
    packed = pack_grid("m", case.scheme, case.parts, case.shape)
    arrays = (packed, case.x, case.token_scales, case.bias)
    return struct.pack("<7q", *sizes) + b"".join(array.tobytes() for array in arrays if array is not None)


def run_driver(command: Sequence[str], cases: Sequence[Case]) -> list[F32]:
    process = subprocess.run(command, input=b"".join(map(packed_case, cases)), capture_output=True, check=False)
    assert process.returncode == 0, process.stderr.decode()
    counts = [len(case.x) * case.shape[0] for case in cases]
    values = np.split(np.frombuffer(process.stdout, "<f4"), np.cumsum(counts)[:-1])
    return [value.reshape(len(case.x), -1) for value, case in zip(values, cases, strict=True)]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("processor", "code_paths"),
    [("aarch64", ["neon", "neon_dotprod", "neon_i8mm", "scalar"]), ("simde", ["avx512vnni"])],
)
def test_paths_of_other_processors_are_exact_under_emulation(
    processor: str, code_paths: list[str], tmp_path: Path
) -> None:
    driver = Path(__file__).with_name("grid_driver.cpp")
    command, cases = foreign_driver(processor, tmp_path, driver), sweep()
    for code_path in code_paths:
        for number, (case, actual) in enumerate(zip(cases, run_driver([*command, code_path], cases), strict=True)):
            assert same(actual, case.expected()), f"{code_path}, case {number}"
