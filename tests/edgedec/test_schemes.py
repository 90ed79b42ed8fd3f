from __future__ import annotations

from dataclasses import asdict
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.errors import BundleError
from edgedec.schemes import (
    FloatScheme,
    FloatWeight,
    Int4Scheme,
    Int8Scheme,
    Int8Weight,
    Scheme,
    TernaryScheme,
    TernaryWeight,
    scheme_features,
    scheme_from_json,
    scheme_to_json,
)
from tests.support.make_tiny import random_parts

planes = st.integers(1, 3)
group_sizes = st.sampled_from([0, 32, 64, 128])
ternary = st.builds(TernaryScheme, planes=planes, group_size=group_sizes)
tied = st.builds(
    TernaryScheme, planes=st.sampled_from([2, 3]), group_size=st.sampled_from([32, 64, 128]), tied=st.just(True)
)
halves = st.builds(TernaryScheme, planes=planes, group_size=st.sampled_from([32, 64, 128]), half_scales=st.just(True))
int4 = st.builds(Int4Scheme, offset=st.booleans())
schemes: st.SearchStrategy[Scheme] = st.one_of(
    st.builds(FloatScheme, dtype=st.sampled_from(["float32", "float16", "bfloat16"])),
    st.builds(Int8Scheme, rows=st.booleans()),
    ternary,
    tied,
    halves,
    int4,
)
shapes = st.tuples(st.integers(1, 9), st.integers(1, 300))
seeds = st.integers(0, 2**32 - 1)


@given(ternary | tied, shapes, seeds)
def test_unpack_undoes_pack(scheme: TernaryScheme, shape: tuple[int, int], seed: int) -> None:
    trits = np.random.default_rng(seed).integers(-1, 2, (scheme.planes, *shape), np.int8)
    codes = scheme.pack(trits)
    part = scheme.parts(shape)["codes"]
    assert (codes.dtype, codes.shape, codes.nbytes) == (part.dtype, part.shape, part.nbytes)
    found = scheme.unpack("w", codes, shape[1])
    assert found.dtype == np.int8
    assert np.array_equal(found, trits)


def test_codes_have_their_layout() -> None:
    scheme = TernaryScheme(planes=1, group_size=32)
    trits = np.zeros((1, 1, 34), np.int8)
    trits[0, 0, [0, 1, 2, 33]] = [-1, 1, 1, -1]
    row = scheme.pack(trits).reshape(-1)
    assert scheme.pack(trits).shape == (1, 1, 2, 8)  # two blocks of 32 columns
    assert row[0] == 0b10_11_11_01  # lowest bits first, codes trit + 2
    assert row[8] == 0b10_10_01_10
    assert set(row.tolist()) == {row[0], row[8], 0b10_10_10_10}


@pytest.mark.parametrize(
    ("group_size", "inputs", "block", "groups"),
    [
        (0, 128, 128, 1),
        (0, 192, 64, 1),
        (0, 96, 32, 1),
        (0, 7, 32, 1),
        (32, 33, 32, 2),
        (64, 64, 64, 1),
        (128, 300, 128, 3),
    ],
)
def test_blocks_and_groups_are_consistent(group_size: int, inputs: int, block: int, groups: int) -> None:
    scheme = TernaryScheme(group_size=group_size)
    assert (scheme.block(inputs), scheme.groups(inputs)) == (block, groups)


@given(ternary, shapes, seeds, st.data())
def test_a_code_without_a_trit_is_refused(
    scheme: TernaryScheme, shape: tuple[int, int], seed: int, data: st.DataObject
) -> None:
    codes = scheme.pack(np.random.default_rng(seed).integers(-1, 2, (scheme.planes, *shape), np.int8))
    index = data.draw(st.integers(0, codes.size - 1))
    codes.reshape(-1)[index] &= ~np.uint8(3 << 2 * data.draw(st.integers(0, 3)))  # this code is now 0
    with pytest.raises(BundleError, match=r"tensor some\.weight: its codes are not trits"):
        scheme.unpack("some.weight", codes, shape[1])


@pytest.mark.parametrize("value", [1, 3])
def test_padding_that_is_not_zero_is_refused(value: int) -> None:
    scheme = TernaryScheme(planes=2, group_size=64)
    codes = scheme.pack(np.zeros((2, 3, 63), np.int8))
    codes[1, 2, 0, 15] = 0b00_10_10_10 | value << 6
    with pytest.raises(BundleError, match="not trits"):
        scheme.unpack("w", codes, 63)


@given(schemes, shapes, seeds)
def test_parts_describe_the_stored_arrays(scheme: Scheme, shape: tuple[int, int], seed: int) -> None:
    parts = scheme.parts(shape)
    arrays = random_parts(np.random.default_rng(seed), scheme, shape)
    assert set(parts) == set(arrays)
    for name, part in parts.items():
        assert (part.dtype, part.shape, part.nbytes) == (arrays[name].dtype, arrays[name].shape, arrays[name].nbytes)


def obvious(scheme: Scheme, shape: tuple[int, int], arrays: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Compute the weight in float64, one element at a time, from the stored bytes."""
    out = np.zeros(shape)
    for o in range(shape[0]):
        for i in range(shape[1]):
            if isinstance(scheme, FloatScheme):
                out[o, i] = arrays["values"][o, i]
            elif isinstance(scheme, Int8Scheme):
                at = (o, i) if scheme.rows else (i, o)
                out[o, i] = float(arrays["codes"][at]) * float(arrays["scale"][o])
            elif isinstance(scheme, Int4Scheme):
                code, g = int(arrays["codes"][o].reshape(-1)[i // 2] >> 4 * (i % 2) & 15), i // 32
                if scheme.offset:
                    scale, least = arrays["factors"][o, g // 8].astype(float) * arrays["steps"][o, g].astype(float)
                    out[o, i] = scale * code - least
                else:
                    out[o, i] = (code - 8) * float(arrays["scale"][o, g])
            else:
                for plane in range(scheme.planes):
                    code = int(arrays["codes"][plane, o].reshape(-1)[i // 4] >> 2 * (i % 4) & 3)
                    group = (0 if scheme.tied else plane, o, i // scheme.group_size) if scheme.group_size else (0,)
                    power = 3 ** (scheme.planes - 1 - plane) if scheme.tied else 1
                    out[o, i] += (code - 2) * power * float(arrays["scale"][group])
    return out


@settings(max_examples=40)
@given(schemes, st.tuples(st.integers(1, 4), st.integers(1, 140)), seeds)
def test_dense_equals_the_stored_bytes(scheme: Scheme, shape: tuple[int, int], seed: int) -> None:
    arrays = random_parts(np.random.default_rng(seed), scheme, shape)
    weight = scheme.open("w", shape, arrays)
    dense = weight.dense()
    assert dense.dtype == np.float32
    expected = obvious(scheme, shape, arrays)
    assert dense.shape == expected.shape
    assert np.abs(dense - expected).max() <= 1e-6 * np.abs(expected).max()  # float32 sums of up to three planes
    if isinstance(weight, FloatWeight | Int8Weight):
        ids = np.array([shape[0] - 1, 0, 0], np.int32)
        assert np.array_equal(weight.rows(ids), dense[ids])
        assert weight.rows(ids).dtype == np.float32


def test_column_scales_broadcast_against_trits() -> None:
    scale = np.arange(1, 13, dtype=np.float32).reshape(2, 3, 2)
    weight = TernaryWeight(trits=np.ones((2, 3, 40), np.int8), scale=scale, group_size=32)
    assert weight.column_scales().shape == (2, 3, 40)
    assert np.array_equal(weight.column_scales()[1, 2], [11] * 32 + [12] * 8)
    single = TernaryWeight(trits=np.ones((1, 3, 40), np.int8), scale=np.array([2.0], np.float32), group_size=0)
    assert single.column_scales().shape == (1, 1, 1)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("scheme", [Int8Scheme(), Int8Scheme(rows=True), TernaryScheme(), TernaryScheme(group_size=32)])
def test_a_scale_that_is_not_finite_is_refused(scheme: Scheme, value: float) -> None:
    arrays = random_parts(np.random.default_rng(0), scheme, (3, 40))
    arrays["scale"].reshape(-1)[-1] = value
    with pytest.raises(BundleError, match="tensor w: its scale holds NaN or infinity"):
        scheme.open("w", (3, 40), arrays)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_a_value_that_is_not_finite_is_refused(dtype: Any) -> None:
    values = np.zeros((3, 4), dtype)
    values[2, 3] = np.nan
    with pytest.raises(BundleError, match="tensor w: its values holds NaN or infinity"):
        FloatScheme(dtype=np.dtype(dtype).name).open("w", (3, 4), {"values": values})


def test_int8_codes_are_symmetric() -> None:
    arrays = random_parts(np.random.default_rng(0), Int8Scheme(), (3, 4))
    arrays["codes"][0, 0] = -128
    with pytest.raises(BundleError, match=r"tensor w: its codes are not in -127\.\.127"):
        Int8Scheme().open("w", (3, 4), arrays)


def test_opening_copies_trits_only() -> None:
    rng = np.random.default_rng(0)
    floats = random_parts(rng, FloatScheme(), (3, 4))
    weight = FloatScheme().open("w", (3, 4), floats)
    assert isinstance(weight, FloatWeight)
    assert np.shares_memory(weight.values, floats["values"])
    codes = random_parts(rng, Int8Scheme(), (3, 4))
    opened = Int8Scheme().open("w", (3, 4), codes)
    assert isinstance(opened, Int8Weight)
    assert opened.codes.shape == (3, 4)
    assert np.shares_memory(opened.codes, codes["codes"])


@given(schemes)
def test_a_scheme_survives_json(scheme: Scheme) -> None:
    assert scheme_from_json("w", scheme_to_json(scheme)) == scheme


def test_schemes_of_older_readers_have_no_new_keys_and_new_ones_are_features() -> None:
    assert scheme_to_json(TernaryScheme(planes=2, group_size=64)) == {"kind": "ternary", "planes": 2, "group_size": 64}
    assert scheme_features(TernaryScheme(planes=2, group_size=64)) == set()
    assert scheme_features(TernaryScheme(planes=2, group_size=64, tied=True)) == {"tied_planes"}
    assert scheme_features(TernaryScheme(group_size=64, half_scales=True)) == {"half_scales"}
    assert scheme_features(Int4Scheme()) == {"int4"}
    assert scheme_features(Int8Scheme()) == scheme_features(FloatScheme()) == set()


@given(st.booleans(), shapes, seeds)
def test_int4_codes_are_unpacked_as_they_were(offset: bool, shape: tuple[int, int], seed: int) -> None:
    scheme, codes = Int4Scheme(offset=offset), np.random.default_rng(seed).integers(0, 16, shape, np.uint8)
    stored = scheme.pack(codes)
    assert (stored.dtype, stored.shape) == (np.dtype(np.uint8), scheme.parts(shape)["codes"].shape)
    unpacked = scheme.unpack(stored)
    assert np.array_equal(unpacked[:, : shape[1]], codes)
    assert (unpacked[:, shape[1] :] == scheme.zero).all()


def test_int4_refuses_what_is_not_its_own() -> None:
    rng = np.random.default_rng(0)
    for scheme, part, value, message in (
        (Int4Scheme(), "scale", np.inf, "tensor w: its scale holds NaN or infinity"),
        (Int4Scheme(offset=True), "factors", np.nan, "tensor w: its factors holds NaN or infinity"),
        (Int4Scheme(offset=True), "steps", 64, r"tensor w: its steps are not in 0\.\.63"),
        (Int4Scheme(), "codes", 0x78, "tensor w: the padding of its codes is not 8"),
    ):
        arrays = random_parts(rng, scheme, (3, 40))
        scheme.open("w", (3, 40), arrays)
        arrays[part].reshape(-1)[-1] = value
        with pytest.raises(BundleError, match=message):
            scheme.open("w", (3, 40), arrays)


@pytest.mark.thorough(sample=15)
@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        "float",
        {},
        {"kind": "int4", "offset": 1},
        {"kind": "int4", "group_size": 32},
        {"kind": "int5"},
        {"kind": "ternary", "planes": 1, "group_size": 64, "tied": True},
        {"kind": "ternary", "planes": 2, "group_size": 0, "tied": True},
        {"kind": "ternary", "planes": 2, "group_size": 64, "tied": 1},
        {"kind": "ternary", "planes": 1, "group_size": 0, "half_scales": True},
        {"kind": "ternary", "planes": 1, "group_size": 64, "half_scales": 1},
        {"kind": "ternary", "planes": 2, "group_size": 64, "tied": True, "half_scales": True},
        {"kind": None},
        {"kind": []},
        {"kind": {}},
        {"kind": ["float"]},
        {"kind": "float", "dtype": "float64"},
        {"kind": "float", "dtype": None},
        {"kind": "float", "dtype": []},
        {"kind": "float", "bits": 8},
        {"kind": "int8", "rows": 1},
        {"kind": "int8", "rows": "false"},
        {"kind": "int8", "rows": None},
        {"kind": "int8", "dtype": "float32"},
        {"kind": "ternary", "planes": 0},
        {"kind": "ternary", "planes": 4},
        {"kind": "ternary", "planes": True},
        {"kind": "ternary", "planes": 2.0},
        {"kind": "ternary", "planes": "2"},
        {"kind": "ternary", "planes": [1]},
        {"kind": "ternary", "planes": 10**4000},
        {"kind": "ternary", "group_size": -32},
        {"kind": "ternary", "group_size": 16},
        {"kind": "ternary", "group_size": 256},
        {"kind": "ternary", "group_size": False},
        {"kind": "ternary", "group_size": 64.0},
        {"kind": "ternary", "group_size": None},
        {"kind": "ternary", "block": 32},
        {"kind": "ternary", "self": 1},
    ],
    ids=lambda data: repr(data)[:50],
)
def test_other_json_is_refused(data: Any) -> None:
    with pytest.raises(BundleError, match=r"^tensor some\.weight: ") as caught:
        scheme_from_json("some.weight", data)
    assert len(str(caught.value)) < 300


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.thorough
@given(
    st.dictionaries(st.sampled_from(["kind", "dtype", "rows", "planes", "group_size", "x"]), json_values)
    | st.fixed_dictionaries(
        {"kind": st.sampled_from(["float", "int8", "ternary"])},
        optional={"dtype": json_values, "rows": json_values, "planes": json_values, "group_size": json_values},
    )
)
def test_any_json_gives_a_scheme_or_a_bundle_error(data: dict[str, Any]) -> None:
    try:
        scheme = scheme_from_json("w", data)
    except BundleError:
        return
    assert {"kind": scheme.kind, **asdict(scheme)}.items() >= data.items()
    assert all(part.nbytes > 0 for part in scheme.parts((3, 5)).values())
