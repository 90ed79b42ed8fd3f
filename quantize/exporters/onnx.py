"""Write a bundle as a portable ONNX graph from ids to logits, with external data and onnxruntime-genai's configuration.

A model with recurrent states gets no configuration, because genai has no name for such states; ONNX Runtime runs its graph.
They are inputs ``past_recurrent.N`` and outputs ``present_recurrent.N`` (onnx_recurrent.py), zero before a text, and are
those after all rows, so the rows of a pass must be a part of the text, without padding.

The graph has the codes of the bundle: trits in MatMulNBits of 2 bits, with one product per plane, int8 matrices in
MatMulNBits of 8 bits, and float matrices unchanged. Activations are quantized to int8, which ONNX Runtime does per block
instead of per token. ONNX Runtime's attention operator rotates, and keeps keys and values in float32. The head is computed
whole and its logits are cut to the tokenizer's ids.

Source: docs/ContribOperators.md of ONNX Runtime; the names of src/config.h in onnxruntime-genai.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

from edgedec.bundle.atomic import new_folder
from edgedec.bundle.bundle import Bundle
from edgedec.errors import UsageError
from edgedec.families import build_graph, context_size
from edgedec.graph.graph import Graph, check_no_features
from edgedec.graph.ops import Attention
from edgedec.kv.policy import check_no_policy
from edgedec.progress import Progress, silent
from edgedec.quantize.exporters.folder_tokenizer import check_tokenizer, write_tokenizer
from edgedec.quantize.exporters.onnx_graph import WEIGHTS, GraphWriter
from edgedec.quantize.exporters.onnx_recurrent import PAST, PRESENT

__all__ = ["decoder_config", "export_onnx", "weight_bytes", "write_config", "write_model"]

_CONFIG = "genai_config.json"
_GRAPH = "model.onnx"
_OPSET, _IR = 21, 10
_MS = "com.microsoft"
# Families that genai knows, under Hugging Face's names. Others use its plain decoder, which has no family-specific steps.
_TYPES = ("gemma", "gemma2", "gemma3_text", "llama", "mistral", "phi3", "qwen2", "qwen3", "smollm3")
_ANY_TYPE = "decoder"
_DRAFT = "draft"  # folder of the draft's model
# genai proposes tokens with the draft if there is one, otherwise with the text that followed the last tokens earlier.
_SPECULATIVE: Mapping[str, Mapping[str, int]] = {"draft": {"max_draft_tokens": 4}, "n-gram": {"ngram_size": 3}}


def _sizes(graph: Graph) -> dict[str, int]:
    """Return the sizes in genai's configuration, under its names. All layers have the same sizes."""
    attention = next(op for op in graph.operations if isinstance(op, Attention))
    state, width = graph.states[attention.state], graph.values[graph.operations[0].outputs[0]].shape[1]
    assert isinstance(width, int)
    return {
        "head_size": state.head_dim,
        "hidden_size": width,
        "num_attention_heads": attention.heads,
        "num_key_value_heads": state.kv_heads,
        "num_hidden_layers": len(graph.states),
    }


def decoder_config(bundle: Bundle, folder: str, threads: int) -> dict[str, Any]:
    """Return genai's description of a model that ``write_model`` wrote.

    ``folder`` is the model's folder relative to that of the configuration. With ``threads`` 0 genai chooses the number of
    threads.
    """
    options: dict[str, Any] = {"provider_options": []}
    if threads:
        options |= {"intra_op_num_threads": threads, "inter_op_num_threads": 1}
    return {
        "filename": f"{folder}/{_GRAPH}" if folder else _GRAPH,
        "session_options": options,
        **_sizes(build_graph(bundle.config)),
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
    """Write the configuration of a folder that genai opens as a model for greedy decoding.

    Args:
        decoder: result of ``decoder_config`` for the model.
        draft: result of ``decoder_config`` for the draft; None: there is none.
        positions: context in tokens.
        speculate: write settings with which genai speculates by default.
    """
    eos = list(bundle.tokens.eos) or [bundle.tokens.size]
    bos = eos[0] if bundle.tokens.bos is None else bundle.tokens.bos
    family = bundle.config["model_type"]
    kind = family if family in _TYPES else _ANY_TYPE
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
    """Return the size of the weights of a model that ``write_model`` wrote. A pass reads all but the embedding."""
    return (folder / WEIGHTS).stat().st_size


def _signature(graph: Graph, vocab: int) -> tuple[list[onnx.ValueInfoProto], list[onnx.ValueInfoProto]]:
    value, integer, real = helper.make_tensor_value_info, TensorProto.INT64, TensorProto.FLOAT
    inputs = [value("input_ids", integer, ["b", "s"])]
    if graph.states:
        inputs.append(value("attention_mask", integer, ["b", "total"]))
    outputs = [value("logits", real, ["b", "s", vocab])]
    for at, state in enumerate(graph.states.values()):
        for part in ("key", "value"):
            heads, width = state.kv_heads, state.head_dim
            inputs.append(value(f"past_key_values.{at}.{part}", real, ["b", heads, "past", width]))
            outputs.append(value(f"present.{at}.{part}", real, ["b", heads, "kept", width]))
    for at, recurrent in enumerate(graph.recurrent.values()):
        inputs.append(value(f"{PAST}.{at}", real, ["b", *recurrent.shape]))
        outputs.append(value(f"{PRESENT}.{at}", real, ["b", *recurrent.shape]))
    return inputs, outputs


def write_model(bundle: Bundle, folder: Path, progress: Progress = silent) -> None:
    """Write ``bundle`` as an ONNX model: the graph and its weights.

    Raises:
        UnsupportedError: genai's operators cannot express an operation, which the message names.
    """
    with new_folder(folder, _GRAPH) as new:
        _write(bundle, new, progress)


def _write(bundle: Bundle, new: Path, progress: Progress) -> None:
    check_no_policy(bundle.path, bundle.config, "genai's attention")
    graph = build_graph(bundle.config)
    check_no_features(graph, "genai's decoder")
    bundle.check(graph)
    vocab = bundle.tokens.size
    writer = GraphWriter(bundle, graph, new)
    with writer.file:
        logits = writer.write(progress)
    ends = [writer.constant(f"slice.{part}", [value]) for part, value in zip("abc", (0, vocab, 2), strict=True)]
    writer.node("Slice", [logits, *ends], "logits")
    inputs, outputs = _signature(graph, vocab)
    decoder = helper.make_graph(writer.nodes, "decoder", inputs, outputs, writer.tensors)
    opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(_MS, 1)]
    (new / _GRAPH).write_bytes(helper.make_model(decoder, opset_imports=opsets, ir_version=_IR).SerializeToString())


def export_onnx(
    bundle: Bundle, folder: Path, *, draft: Bundle | None = None, progress: Progress = silent
) -> dict[str, int]:
    """Write ``folder`` with graph, weights, configuration and tokenizer for onnxruntime-genai, completely or not at all.

    A model with recurrent states gets no configuration.

    ``draft`` becomes a folder inside it. Return the number of tensors of each scheme.

    Raises:
        UnsupportedError: genai's operators cannot express an operation, which the message names.
        UsageError: ``folder`` holds other files, or ``draft`` has another tokenizer, or there is a draft and one of the two
            has recurrent states.
    """
    if draft is not None and draft.tokenizer_hash != bundle.tokenizer_hash:
        raise UsageError(f"{draft.path}: has another tokenizer than {bundle.path}; a draft must have the same")
    recurrent = [one.path for one in (bundle, draft) if one is not None and build_graph(one.config).recurrent]
    if draft is not None and recurrent:
        raise UsageError(
            f"{recurrent[0]} has recurrent states, which onnxruntime-genai does not know, so there is no configuration that "
            "could name a draft; export each model by itself, without --model-draft"
        )
    with new_folder(folder, _GRAPH) as new:
        _write(bundle, new, progress)
        draft_config = None
        if draft is not None:
            (new / _DRAFT).mkdir()
            _write(draft, new / _DRAFT, progress)
            draft_config = decoder_config(draft, _DRAFT, threads=0)
        if not recurrent:
            positions = min(context_size(one.config) for one in (bundle, draft or bundle))
            write_config(new, decoder_config(bundle, "", threads=0), draft_config, bundle, positions, speculate=True)
        write_tokenizer(bundle, new)
        check_tokenizer(bundle, new)
    counts: dict[str, int] = {}
    for tensor in bundle.tensors.values():
        counts[tensor.scheme.kind] = counts.get(tensor.scheme.kind, 0) + 1
    return counts
