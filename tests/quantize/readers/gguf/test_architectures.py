"""Test whole models of every architecture: a GGUF in the order of llama.cpp's converter gives the checkpoint's logits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.bundle.bundle import Bundle
from edgedec.errors import BundleError, UnsupportedError
from edgedec.families import build_graph
from edgedec.quantize.pipeline import QuantizeOptions, quantize
from edgedec.quantize.readers import open_checkpoint
from edgedec.reference.float_profile.model import ReferenceModel
from tests.edgedec.families.support import make_golden_models
from tests.edgedec.families.support import reference_golden as golden
from tests.edgedec.families.support.make_golden_models import F32
from tests.quantize.readers.support import make_gguf_checkpoint


@dataclass(frozen=True, kw_only=True)
class Case:
    """Describe a file: ``changes`` limits the golden model's configuration to what a GGUF can hold; ``more`` has the
    architecture's own keys.
    """

    golden: str
    architecture: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)
    without_head: bool = False


_LONG = {
    "rope.scaling.original_context_length": 512,
    "rope.scaling.attn_factor": float(np.sqrt(1 + np.log(4) / np.log(512))),
}
_GEMMA2 = {"attn_logit_softcapping": 4.0, "final_logit_softcapping": 12.0, "attention.sliding_window": 5}
_GEMMA3 = {
    "attention.sliding_window": 5,
    "attention.sliding_window_pattern": 2,
    "rope.scaling.type": "linear",
    "rope.scaling.factor": 8.0,
}
CASES = [
    Case(golden="grouped_tied", architecture="llama"),
    Case(golden="mistral/plain", architecture="llama"),
    Case(golden="qwen2/plain", architecture="qwen2"),
    Case(golden="qwen3/plain", architecture="qwen3"),
    Case(golden="bitnet/silu", architecture="bitnet", changes={"tie_word_embeddings": True}, without_head=True),
    Case(golden="bitnet/plain", architecture="bitnet-b1.58", changes={"tie_word_embeddings": True}, without_head=True),
    Case(golden="phi3/window", architecture="phi3", more={"attention.sliding_window": 5}),
    Case(golden="phi3/plain", architecture="phi3", more={"attention.sliding_window": 0}),
    Case(
        golden="phi3/longrope",
        architecture="phi3",
        more={
            **_LONG,
            "rope_factors_short": np.array([1.0, 1.5, 2.0, 3.0], np.float32),
            "rope_factors_long": np.array([2.0, 4.0, 8.0, 16.0], np.float32),
        },
    ),
    Case(
        golden="phi3/partial_longrope",
        architecture="phi3",
        more={
            **_LONG,
            "rope.dimension_count": 6,
            "rope_factors_short": np.array([1.0, 1.5, 2.0], np.float32),
            "rope_factors_long": np.array([2.0, 2.0, 2.0], np.float32),
        },
    ),
    Case(golden="gemma/plain", architecture="gemma"),
    Case(golden="gemma2/plain", architecture="gemma2", changes={"query_pre_attn_scalar": 8}, more=_GEMMA2),
    Case(golden="gemma3_text/plain", architecture="gemma3", changes={"query_pre_attn_scalar": 8}, more=_GEMMA3),
    Case(golden="smollm3/plain", architecture="smollm3", changes={"no_rope_layers": [1, 1]}),
    Case(golden="qwen3_5_text/plain", architecture="qwen35", more={"full_attention_interval": 2}),
    Case(golden="qwen3_5_text/order", architecture="qwen35", more={"attention.recurrent_layers": [False, True]}),
]


def read(case: Case) -> golden.Golden:
    model = golden.read(case.golden)
    if not case.without_head:
        return model
    return replace(model, weights={name: values for name, values in model.weights.items() if "lm_head" not in name})


def write(path: Path, case: Case) -> Path:
    model = read(case)
    return make_gguf_checkpoint.write(path, case.architecture, model.config, model.weights, case.more)


def through_a_bundle(file: Path, model: golden.Golden, folder: Path) -> F32:
    quantize(open_checkpoint(file), folder, QuantizeOptions(method="float"), vocab_limit=13)
    bundle = Bundle.open(folder)
    reference = ReferenceModel(build_graph(bundle.config), bundle.weight)
    values: F32 = reference.forward(model.ids, reference.new_cache(), positions=model.positions)[0]
    return values


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.architecture}-{case.golden}")
def test_a_file_gives_the_golden_logits(case: Case, tmp_path: Path) -> None:
    model = read(case)
    expected = make_golden_models.logits(model, case.changes) if case.changes else model.logits
    actual = through_a_bundle(write(tmp_path / "m.gguf", case), model, tmp_path / "b")
    assert np.abs(actual - expected).max() < golden.TOLERANCE


def by_name(name: str) -> Case:
    return next(case for case in CASES if case.golden == name)


def test_fused_rows_of_any_architecture_are_read(tmp_path: Path) -> None:
    """Fuse them as convert_hf_to_gguf.py --fuse-qkv does."""
    model = golden.read("qwen2/plain")
    weights = dict(model.weights)
    for layer in range(2):
        for kind in ("weight", "bias"):
            at = f"model.layers.{layer}.self_attn"
            parts = [weights.pop(f"{at}.{part}_proj.{kind}") for part in "qkv"]
            weights[f"{at}.qkv_proj.{kind}"] = np.concatenate(parts)
    path = tmp_path / "m.gguf"
    conversion = {f"blk.{layer}.attn_qkv.{kind}": weights.pop(f"model.layers.{layer}.self_attn.qkv_proj.{kind}")
                  for layer in range(2) for kind in ("weight", "bias")}  # fmt: skip
    writer_tensors = make_gguf_checkpoint.tensors

    def with_fused(architecture: str, config: Mapping[str, Any], weights: Mapping[str, F32]) -> dict[str, F32]:
        return writer_tensors(architecture, config, weights) | conversion

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(make_gguf_checkpoint, "tensors", with_fused)
        make_gguf_checkpoint.write(path, "qwen2", model.config, weights, {})
    assert np.abs(through_a_bundle(path, model, tmp_path / "b") - model.logits).max() < golden.TOLERANCE


@pytest.mark.parametrize(
    ("name", "more", "error", "message"),
    [
        ("phi3/plain", {"rope.dimension_count": 5}, BundleError, r"must be an even number up to 8, not 5"),
        ("phi3/plain", {"rope.dimension_count": 10}, BundleError, r"must be an even number up to 8, not 10"),
        ("phi3/plain", {"feed_forward_length": 13}, BundleError, r"'blk.0.ffn_up.weight' has 24 rows, not 13 \+ 13"),
        ("phi3/plain", {"attention.sliding_window": "x"}, BundleError, r"sliding_window must be an integer from 0"),
        (
            "phi3/plain",
            {"rope_factors_long": np.ones(4, np.float32)},
            BundleError,
            r"'rope_factors_long.weight' needs the one for shorter",
        ),
        (
            "qwen2/plain",
            {"rope_freqs": np.ones(4, np.float32), "rope.scaling.type": "yarn"},
            UnsupportedError,
            r"'rope_freqs.weight' together with qwen2.rope.scaling.type yarn",
        ),
        ("qwen3/plain", {"rope.dimension_count": 4}, UnsupportedError, r"dimension_count other than the 8 columns"),
        ("gemma2/plain", {**_GEMMA2, "rope.freq_base_swa": 5000.0}, UnsupportedError, r"a gemma2 has one rotation"),
    ],
)
def test_unsupported_files_are_refused(
    name: str, more: Mapping[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    case, model = by_name(name), golden.read(name)
    path = make_gguf_checkpoint.write(tmp_path / "m.gguf", case.architecture, model.config, model.weights, more)
    with pytest.raises(error, match=message):
        open_checkpoint(path)


# --- several files


def split(whole: Path, parts: int) -> list[Path]:
    """Split a file as llama-gguf-split does: the metadata in the first file, tensors in turn."""
    import gguf

    reader = gguf.GGUFReader(whole)
    tensors = list(reader.tensors)
    paths = [whole.with_name(f"m-{at + 1:05d}-of-{parts:05d}.gguf") for at in range(parts)]
    for at, path in enumerate(paths):
        writer = gguf.GGUFWriter(path, "")
        writer.kv_data[0].clear()
        if at == 0:
            for field_ in reader.fields.values():
                if not field_.name.startswith("GGUF."):
                    kind = field_.types[0]
                    sub = field_.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
                    writer.add_key_value(field_.name, field_.contents(), kind, sub_type=sub)
        writer.add_uint16("split.no", at)
        writer.add_uint16("split.count", parts)
        writer.add_int32("split.tensors.count", len(tensors))
        for tensor in tensors[at::parts]:
            writer.add_tensor(tensor.name, np.array(tensor.data))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return paths


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    whole = write(tmp_path / "whole.gguf", by_name("gemma2/plain"))
    return split(whole, 3)


@pytest.mark.parametrize("part", [0, 1, 2])
def test_any_part_opens_the_model(part: int, parts: list[Path], tmp_path: Path) -> None:
    whole, opened = open_checkpoint(tmp_path / "whole.gguf"), open_checkpoint(parts[part])
    assert opened.config == whole.config
    assert opened.tensors == whole.tensors
    for name in whole.tensors:
        np.testing.assert_array_equal(opened.load(name), whole.load(name))


def test_a_missing_part_is_refused(parts: list[Path]) -> None:
    parts[1].unlink()
    with pytest.raises(
        BundleError, match=r"is part 3 of 3, but m-00002-of-00003.gguf is not in its folder; fetch it, too"
    ):
        open_checkpoint(parts[2])


def test_a_part_with_another_name_is_refused(parts: list[Path]) -> None:
    renamed = parts[0].rename(parts[0].with_name("model.gguf"))
    with pytest.raises(BundleError, match=r"its name must end with -00001-of-00003.gguf"):
        open_checkpoint(renamed)


def test_swapped_parts_are_refused(parts: list[Path], tmp_path: Path) -> None:
    parts[1].rename(tmp_path / "x")
    parts[2].rename(parts[1])
    (tmp_path / "x").rename(parts[2])
    with pytest.raises(BundleError, match=r"00002-of-00003.gguf: says that it is part 3 of 3, its name part 2 of 3"):
        open_checkpoint(parts[0])


def test_a_part_that_occurs_twice_is_refused(parts: list[Path]) -> None:
    parts[2].write_bytes(parts[1].read_bytes())
    with pytest.raises(BundleError, match=r"says that it is part 2 of 3, its name part 3"):
        open_checkpoint(parts[0])


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ("phi3/plain", r"its split.tensors.count is not that of m-00001-of-00003.gguf"),
        ("qwen3/plain", r"tensor '.*' is in m-00001-of-00003.gguf too"),  # it has the same number of parts
    ],
)
def test_a_part_of_another_model_is_refused(other: str, message: str, parts: list[Path], tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    theirs = split(write(tmp_path / "other" / "whole.gguf", by_name(other)), 3)
    parts[1].write_bytes(theirs[1].read_bytes())
    with pytest.raises(BundleError, match=message):
        open_checkpoint(parts[0])
