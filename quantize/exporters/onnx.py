"""A bundle as a portable ONNX graph with external data, ids in and logits out, and onnxruntime-genai's configuration for it.

The same codes as ours: trits in MatMulNBits of 2 bits, a product for each plane, int8 matrices in MatMulNBits of 8, float
matrices as they are. Activations are quantized to int8 as ours are, which ONNX Runtime does block by block, not token by
token. Its own attention operator rotates, and keeps keys and values in float32. Logits end with the tokenizer's ids: the
head is computed whole, and cut.

Source: docs/ContribOperators.md of ONNX Runtime; the names of src/config.h in onnxruntime-genai.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper
from tokenizers import Tokenizer

from edgedec.atomic import new_folder
from edgedec.bundle import Bundle
from edgedec.errors import UnsupportedError, UsageError
from edgedec.families import build_graph, context_size
from edgedec.graph import Graph
from edgedec.ops import RmsNorm, Rope
from edgedec.progress import Progress, silent
from edgedec.schemes import FloatScheme, Int8Scheme, TernaryScheme

__all__ = ["decoder_config", "export_onnx", "weight_bytes", "write_config", "write_model"]

Array = NDArray[Any]

_CONFIG = "genai_config.json"
_GRAPH, _WEIGHTS = "model.onnx", "weights.bin"
_OPSET, _IR = 21, 10
_ACTIVATIONS_INT8 = 4  # MatMulNBits' accuracy_level
_MS = "com.microsoft"
_FAMILIES = ("llama", "qwen2", "mistral")
_DRAFT = "draft"  # the folder of its model
# genai guesses with the draft if there is one, else with what followed the last tokens before.
_SPECULATIVE: Mapping[str, Mapping[str, int]] = {"draft": {"max_draft_tokens": 4}, "n-gram": {"ngram_size": 3}}
_INT8_ZERO = 128
_PAGE = 4096


class _Writer:
    """A graph under construction. Tensors go to the weights file at once."""

    def __init__(self, bundle: Bundle, folder: Path) -> None:
        self.bundle, self.config = bundle, bundle.config
        self.file = (folder / _WEIGHTS).open("wb")
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []

    def node(self, kind: str, inputs: Sequence[str], output: str, domain: str = "", **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, list(inputs), [output], name=output, domain=domain, **attributes))
        return output

    def tensor(self, name: str, array: Array) -> str:
        """An initializer in the weights file, page by page so that it can be mapped."""
        self.file.write(b"\0" * (-self.file.tell() % _PAGE))
        offset, data = self.file.tell(), np.ascontiguousarray(array)
        self.file.write(data.view(np.uint8).reshape(-1).data)
        kind = helper.np_dtype_to_tensor_dtype(data.dtype)
        proto = TensorProto(name=name, data_type=kind, dims=data.shape, data_location=TensorProto.EXTERNAL)
        for key, value in (("location", _WEIGHTS), ("offset", str(offset)), ("length", str(data.nbytes))):
            proto.external_data.add(key=key, value=value)
        self.tensors.append(proto)
        return name

    def constant(self, name: str, values: Sequence[int]) -> str:
        self.tensors.append(helper.make_tensor(name, TensorProto.INT64, [len(values)], list(values)))
        return name

    def embed(self, name: str, ids: str) -> str:
        """ids int64 [b, s] -> float32 [b, s, hidden]."""
        scheme = self.bundle.tensors[name].scheme
        part = "values" if isinstance(scheme, FloatScheme) else "codes"
        rows = self.node("Gather", [self.tensor(name, self.bundle.array(name, part)), ids], f"{name}.rows")
        rows = self.node("Cast", [rows], f"{name}.float", to=TensorProto.FLOAT)
        if isinstance(scheme, FloatScheme):
            return rows
        scale = self.tensor(f"{name}.scale", self.bundle.array(name, "scale")[:, None])
        return self.node("Mul", [rows, self.node("Gather", [scale, ids], f"{name}.scale.rows")], f"{name}.out")

    def norm(self, name: str, x: str, eps: float) -> str:
        gain = self.tensor(name, self.bundle.array(name, "values").astype(np.float32))
        return self.node("SimplifiedLayerNormalization", [x, gain], f"{name}.out", axis=-1, epsilon=eps, stash_type=1)

    def linear(self, name: str, x: str) -> str:
        product = self._product(name, x)
        bias = f"{name.removesuffix('weight')}bias"
        if bias not in self.bundle.tensors:
            return product
        values = self.bundle.weight(bias).dense()
        return self.node("Add", [product, self.tensor(bias, values)], f"{name}.biased")

    def _product(self, name: str, x: str) -> str:
        outputs, inputs = self.bundle.tensors[name].shape
        if isinstance(self.bundle.tensors[name].scheme, FloatScheme):
            rows = self.tensor(name, self.bundle.weight(name).dense())
            turned = self.node("Transpose", [rows], f"{name}.turned", perm=[1, 0])
            return self.node("MatMul", [x, turned], f"{name}.product")
        total = ""
        for plane, (bits, block, codes, scale) in enumerate(_blocks(self.bundle, name)):
            at = f"{name}.{plane}"
            sources = [x, self.tensor(f"{at}.codes", codes), self.tensor(f"{at}.scales", scale)]
            sizes = {"N": outputs, "K": inputs, "bits": bits, "block_size": block}
            product = self.node("MatMulNBits", sources, f"{at}.product", _MS, accuracy_level=_ACTIVATIONS_INT8, **sizes)
            total = self.node("Add", [total, product], f"{at}.sum") if total else product
        return total


def _blocks(bundle: Bundle, name: str) -> list[tuple[int, int, Array, Array]]:
    """Of each plane: bits, block size, codes uint8 [out, blocks, bytes] and scales float32 [out, blocks], for MatMulNBits.

    Without zero points a code means itself less half the range: 2 at 2 bits, as in a bundle, and 128 at 8 bits.
    """
    scheme, (outputs, inputs) = bundle.tensors[name].scheme, bundle.tensors[name].shape
    if isinstance(scheme, TernaryScheme):
        block = scheme.block(inputs)
        planes, scale = bundle.array(name, "codes"), bundle.array(name, "scale")
        if scheme.group_size:
            return [(2, block, codes, scales) for codes, scales in zip(planes, scale, strict=True)]
        return [(2, block, codes, np.full(codes.shape[:2], scale[0], np.float32)) for codes in planes]
    block = next((size for size in (128, 64, 32) if inputs % size == 0), 0)
    if not isinstance(scheme, Int8Scheme) or not block:
        raise UnsupportedError(f"tensor {name}: an int8 matrix with rows of {inputs}, which are no blocks of 32")
    stored = bundle.array(name, "codes") if scheme.rows else bundle.array(name, "codes").T
    codes = (stored.astype(np.int16) + _INT8_ZERO).astype(np.uint8).reshape(outputs, -1, block)
    return [(8, block, codes, np.repeat(bundle.array(name, "scale")[:, None], inputs // block, axis=1))]


def _rotation(frequencies: Sequence[float], positions: int) -> tuple[Array, Array]:
    """float32 [positions, head_dim / 2] each: cosines and sines."""
    angles = np.arange(positions)[:, None] * np.asarray(frequencies)[None]
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def _layer(writer: _Writer, at: int, x: str, eps: float, attention: Mapping[str, Any]) -> str:
    name = f"model.layers.{at}"
    normed = writer.norm(f"{name}.input_layernorm.weight", x, eps)
    q, k, v = (writer.linear(f"{name}.self_attn.{part}_proj.weight", normed) for part in "qkv")
    past = [f"past_key_values.{at}.{part}" for part in ("key", "value")]
    present = [f"present.{at}.{part}" for part in ("key", "value")]
    mixed = f"{name}.attention"
    inputs = [q, k, v, *past, "seqlens_k", "total_length", "cos", "sin"]
    made = helper.make_node("GroupQueryAttention", inputs, [mixed, *present], name=mixed, domain=_MS, **attention)
    writer.nodes.append(made)
    x = writer.node("Add", [x, writer.linear(f"{name}.self_attn.o_proj.weight", mixed)], f"{name}.mixed")
    normed = writer.norm(f"{name}.post_attention_layernorm.weight", x, eps)
    gate, up = (writer.linear(f"{name}.mlp.{part}_proj.weight", normed) for part in ("gate", "up"))
    silu = writer.node("Mul", [gate, writer.node("Sigmoid", [gate], f"{gate}.sigmoid")], f"{gate}.silu")
    wide = writer.node("Mul", [silu, up], f"{name}.wide")
    return writer.node("Add", [x, writer.linear(f"{name}.mlp.down_proj.weight", wide)], f"{name}.out")


def _sizes(config: Mapping[str, Any]) -> dict[str, int]:
    """The sizes that both the graph and genai's configuration state, by genai's names."""
    heads = config["num_attention_heads"]
    return {
        "head_size": config.get("head_dim") or config["hidden_size"] // heads,
        "hidden_size": config["hidden_size"],
        "num_attention_heads": heads,
        "num_key_value_heads": config.get("num_key_value_heads") or heads,
        "num_hidden_layers": config["num_hidden_layers"],
    }


def decoder_config(bundle: Bundle, folder: str, threads: int) -> dict[str, Any]:
    """genai's description of a model that ``write_model`` wrote into ``folder``, relative to the configuration's.

    ``threads`` 0 leaves them to it.
    """
    options: dict[str, Any] = {"provider_options": []}
    if threads:
        options |= {"intra_op_num_threads": threads, "inter_op_num_threads": 1}
    return {
        "filename": f"{folder}/{_GRAPH}" if folder else _GRAPH,
        "session_options": options,
        **_sizes(bundle.config),
        "inputs": {
            "input_ids": "input_ids",
            "attention_mask": "attention_mask",
            "past_key_names": "past_key_values.%d.key",
            "past_value_names": "past_key_values.%d.value",
        },
        "outputs": {
            "logits": "logits",
            "present_key_names": "present.%d.key",
            "present_value_names": "present.%d.value",
        },
    }


def write_config(
    folder: Path,
    decoder: Mapping[str, Any],
    draft: Mapping[str, Any] | None,
    bundle: Bundle,
    positions: int,
    *,
    speculate: bool = False,
) -> None:
    """A folder that genai opens as a model: greedy decoding, with ``draft`` if there is one.

    ``speculate``: the configuration says how, and genai does it unasked.
    """
    eos = list(bundle.tokens.eos) or [bundle.tokens.size]
    bos = eos[0] if bundle.tokens.bos is None else bundle.tokens.bos
    kind = bundle.config["model_type"]
    model: dict[str, Any] = {"type": kind, "vocab_size": bundle.tokens.size, "context_length": positions}
    model |= {"bos_token_id": bos, "eos_token_id": eos, "pad_token_id": eos[0], "decoder": decoder}
    if draft is not None:
        model["draft"] = draft
    speculative = _SPECULATIVE["n-gram" if draft is None else "draft"] if speculate else {}
    search = {"do_sample": False, "max_length": positions, "past_present_share_buffer": True}
    folder.mkdir(parents=True, exist_ok=True)
    content = {"model": model, "search": search} | ({"speculative": dict(speculative)} if speculative else {})
    (folder / _CONFIG).write_text(json.dumps(content, indent=1), encoding="utf-8")


def weight_bytes(folder: Path) -> int:
    """Of a model that ``write_model`` wrote; most of them are read in every pass, but not the embedding."""
    return (folder / _WEIGHTS).stat().st_size


def _signature(config: Mapping[str, Any], vocab: int) -> tuple[list[onnx.ValueInfoProto], list[onnx.ValueInfoProto]]:
    sizes = _sizes(config)
    value, integer, real = helper.make_tensor_value_info, TensorProto.INT64, TensorProto.FLOAT
    inputs = [value("input_ids", integer, ["b", "s"]), value("attention_mask", integer, ["b", "total"])]
    outputs = [value("logits", real, ["b", "s", vocab])]
    for at in range(sizes["num_hidden_layers"]):
        for part in ("key", "value"):
            heads, width = sizes["num_key_value_heads"], sizes["head_size"]
            inputs.append(value(f"past_key_values.{at}.{part}", real, ["b", heads, "past", width]))
            outputs.append(value(f"present.{at}.{part}", real, ["b", heads, "kept", width]))
    return inputs, outputs


def _check(bundle: Bundle, graph: Graph) -> None:
    """Nothing but what is written below: Llama's block, with biases or without."""
    family = bundle.config.get("model_type")
    if family not in _FAMILIES:
        raise UnsupportedError(
            f"{bundle.path}: {family} is not written as ONNX for others; known: {', '.join(_FAMILIES)}"
        )
    if any(state.window is not None for state in graph.states.values()):
        raise UnsupportedError(f"{bundle.path}: a sliding window is not written as ONNX for others")
    if any(isinstance(op, Rope) and op.magnitude != 1 for op in graph.operations):
        raise UnsupportedError(f"{bundle.path}: a rotation that also scales is not written as ONNX for others")


def write_model(bundle: Bundle, folder: Path, progress: Progress = silent) -> None:
    """Write ``bundle``, of Llama's block, as an ONNX model: the graph and its weights.

    Raises:
        UnsupportedError: what genai's operators cannot express; says what.
    """
    with new_folder(folder, _GRAPH) as new:
        _write(bundle, new, progress)


def _write(bundle: Bundle, new: Path, progress: Progress) -> None:
    config = bundle.config
    graph = build_graph(config)
    bundle.check(graph)
    _check(bundle, graph)
    eps = next(op.eps for op in graph.operations if isinstance(op, RmsNorm))
    rope = next(op for op in graph.operations if isinstance(op, Rope))
    head = graph.operations[-1].weight_names[0]
    sizes, vocab = _sizes(config), bundle.tokens.size
    attention = {
        "num_heads": sizes["num_attention_heads"],
        "kv_num_heads": sizes["num_key_value_heads"],
        "scale": sizes["head_size"] ** -0.5,
        "do_rotary": 1,
        "rotary_interleaved": int(rope.layout == "interleaved"),
    }
    writer = _Writer(bundle, new)
    with writer.file:
        for name, values in zip(("cos", "sin"), _rotation(rope.inverse_frequencies, context_size(config)), strict=True):
            writer.tensor(name, values)
        _lengths(writer)
        x = writer.embed("model.embed_tokens.weight", "input_ids")
        for at in range(sizes["num_hidden_layers"]):
            progress(f"layer {at}", at, sizes["num_hidden_layers"])
            x = _layer(writer, at, x, eps, attention)
        logits = writer.linear(head, writer.norm("model.norm.weight", x, eps))
        ends = [writer.constant(f"slice.{part}", [value]) for part, value in zip("abc", (0, vocab, 2), strict=True)]
        writer.node("Slice", [logits, *ends], "logits")
    inputs, outputs = _signature(config, vocab)
    made = helper.make_graph(writer.nodes, "decoder", inputs, outputs, writer.tensors)
    opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(_MS, 1)]
    (new / _GRAPH).write_bytes(helper.make_model(made, opset_imports=opsets, ir_version=_IR).SerializeToString())


def _lengths(writer: _Writer) -> None:
    """``seqlens_k`` int32 [b] and ``total_length`` int32 [], of the attention operator, from the mask int64 [b, total]."""
    one = writer.constant("one", [1])
    summed = writer.node("ReduceSum", ["attention_mask", one], "mask.sum", keepdims=0)
    last = writer.node("Sub", [summed, one], "mask.last")
    writer.node("Cast", [last], "seqlens_k", to=TensorProto.INT32)
    shape = writer.node("Shape", ["attention_mask"], "mask.shape", start=1, end=2)
    length = writer.node("Squeeze", [shape], "mask.length")
    writer.node("Cast", [length], "total_length", to=TensorProto.INT32)


def export_onnx(
    bundle: Bundle, folder: Path, *, draft: Bundle | None = None, progress: Progress = silent
) -> dict[str, int]:
    """Write ``folder``, which onnxruntime-genai opens: graph, weights, configuration, tokenizer; whole or not at all.

    ``draft`` becomes a folder inside it. Returns how many tensors have each scheme.

    Raises:
        UnsupportedError: what its operators cannot express; says what.
        UsageError: ``folder`` holds something else, or ``draft`` has another tokenizer.
    """
    if draft is not None and draft.tokenizer_hash != bundle.tokenizer_hash:
        raise UsageError(f"{draft.path}: has another tokenizer than {bundle.path}; a draft must have the same")
    with new_folder(folder, _GRAPH) as new:
        _write(bundle, new, progress)
        guesser = None
        if draft is not None:
            (new / _DRAFT).mkdir()
            _write(draft, new / _DRAFT, progress)
            guesser = decoder_config(draft, _DRAFT, threads=0)
        positions = min(context_size(one.config) for one in (bundle, draft or bundle))
        write_config(new, decoder_config(bundle, "", threads=0), guesser, bundle, positions, speculate=True)
        shutil.copyfile(bundle.tokenizer_file, new / "tokenizer.json")
        (new / "tokenizer_config.json").write_text(json.dumps(_tokenizer_config(bundle), indent=1), encoding="utf-8")
    counts: dict[str, int] = {}
    for tensor in bundle.tensors.values():
        counts[tensor.scheme.kind] = counts.get(tensor.scheme.kind, 0) + 1
    return counts


def _tokenizer_config(bundle: Bundle) -> dict[str, Any]:
    """What Hugging Face's and genai's tokenizers want beside ``tokenizer.json``."""
    words = Tokenizer.from_file(str(bundle.tokenizer_file))
    found: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    if bundle.tokens.bos is not None:
        found["bos_token"] = words.id_to_token(bundle.tokens.bos)
    if bundle.tokens.eos:
        found["eos_token"] = words.id_to_token(bundle.tokens.eos[0])
    if bundle.chat_template is not None:
        found["chat_template"] = bundle.chat_template
    return found
