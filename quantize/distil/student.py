"""Load a teacher from a checkpoint, and make a student of its shape or another, ready for training."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from edgedec.errors import UnsupportedError, UsageError
from edgedec.families import build_graph
from edgedec.graph.graph import Graph
from edgedec.graph.ops import Add, Linear, RmsNorm
from edgedec.host.spelling import must_be_one_of
from edgedec.quantize.distil.torch_graph import Ternary, TorchGraph
from edgedec.quantize.methods.planes import quantize_planes
from edgedec.quantize.pipeline import checkpoint_graph, tensor_loader
from edgedec.quantize.readers import Checkpoint

__all__ = [
    "StudentOptions",
    "load_teacher",
    "make_student",
    "settle_sub_norms",
    "start_student",
    "student_config",
    "ternary_latent",
]

F32 = NDArray[np.float32]

INITS = ("absmean", "planes", "random")
METHODS = ("ternary", "float")
MOST_COPIES = 4  # times that a student may be as deep as its teacher
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.*)")
_SUB_NORM = re.compile(r".*_sub_norm\.weight")
_ROTATED = re.compile(r".*\.(q|k)_proj\.(weight|bias)")
# Keys of a teacher's configuration that describe how its own weights are stored.
_STORAGE = ("torch_dtype", "dtype", "rope_interleaved", "auto_map", "_name_or_path", "transformers_version")


@dataclass(frozen=True, kw_only=True)
class StudentOptions:
    """Options of the student.

    A size of 0 means the teacher's size. A student of another width cannot start from the teacher's weights, so its ``init``
    must be "random".
    """

    method: str = "ternary"
    init: str = "absmean"
    group_size: int = 0
    sub_norms: bool = False
    layers: int = 0
    hidden_size: int = 0
    intermediate_size: int = 0
    heads: int = 0

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise UsageError(must_be_one_of("--method", self.method, METHODS))
        if self.init not in INITS:
            raise UsageError(must_be_one_of("--init", self.init, INITS))
        if self.group_size not in (0, 32, 64, 128):
            raise UsageError(f"--group-size must be 0 (one scale per tensor), 32, 64 or 128, not {self.group_size}")
        for name in ("layers", "hidden_size", "intermediate_size", "heads"):
            if getattr(self, name) < 0:
                raise UsageError(
                    f"--{name.replace('_', '-')} must be 1 or more, or 0 for the teacher's, not {getattr(self, name)}"
                )
        if self.method == "float" and (self.group_size or self.sub_norms or self.init == "planes"):
            raise UsageError("--group-size, --sub-norms and --init planes are for ternary students, not --method float")
        if self.resized and self.init != "random":
            raise UsageError(
                "a student of another width cannot begin with the teacher's weights: add --init random, "
                "or leave out --hidden-size, --intermediate-size and --heads"
            )

    @property
    def resized(self) -> bool:
        return bool(self.hidden_size or self.intermediate_size or self.heads)


def load_teacher(checkpoint: Checkpoint, positions: int) -> TorchGraph:
    """Load the checkpoint into torch as floats, for rows of up to ``positions`` tokens.

    Raises:
        BundleError, UnsupportedError: see ``checkpoint_graph``.
    """
    graph, sources = checkpoint_graph(checkpoint)
    teacher = TorchGraph(graph, positions=positions)
    teacher.fill(tensor_loader(checkpoint, sources))
    return teacher.requires_grad_(False).eval()


def student_config(checkpoint: Checkpoint, options: StudentOptions) -> dict[str, Any]:
    """Return the teacher's Hugging Face configuration with the student's sizes and family.

    Raises:
        UsageError: the sizes do not match each other, or the student is too deep.
        UnsupportedError: sub-norms were requested for a family that has no place for them.
        BundleError: the teacher's own configuration is damaged.
    """
    build_graph(checkpoint.config)  # validates the keys that are read below
    config = {key: value for key, value in checkpoint.config.items() if key not in _STORAGE}
    deepest = MOST_COPIES * int(config["num_hidden_layers"])
    if options.layers > deepest:
        raise UsageError(
            f"--layers must be at most {deepest}, {MOST_COPIES} times the teacher's {config['num_hidden_layers']}, "
            f"not {options.layers}"
        )
    heads = int(config.get("num_attention_heads") or 0)
    if heads:
        config["head_dim"] = config.get("head_dim") or int(config["hidden_size"]) // heads
    elif options.heads:
        raise UsageError(f"--heads: a {config['model_type']!r} has no attention; leave the option out")
    sizes = {
        "num_hidden_layers": options.layers,
        "hidden_size": options.hidden_size,
        "intermediate_size": options.intermediate_size,
    }
    config |= {key: size for key, size in sizes.items() if size}
    if options.heads:
        shared = heads // int(config.get("num_key_value_heads") or heads)
        if options.heads % shared:
            raise UsageError(f"--heads must be a multiple of {shared}: {shared} of the teacher's heads share a key")
        config |= {"num_attention_heads": options.heads, "num_key_value_heads": options.heads // shared}
    # The checkpoint may know more end tokens than config.json names.
    for key, ids in (("bos_token_id", (checkpoint.bos_token_id,)), ("eos_token_id", checkpoint.eos_token_ids)):
        tokens = [token for token in ids if token is not None]
        config[key] = tokens[0] if len(tokens) == 1 else tokens or None
    return _with_sub_norms(config) if options.sub_norms else config


def _with_sub_norms(config: dict[str, Any]) -> dict[str, Any]:
    family = config["model_type"]
    if family == "bitnet":
        return config
    if family != "llama" or config.get("mlp_bias"):
        model = f"{family!r} with biases in its MLP" if config.get("mlp_bias") else repr(family)
        raise UnsupportedError(f"--sub-norms: the BitNet family has no form of {model}; leave the option out")
    heads, width = int(config["num_attention_heads"]), int(config["head_dim"])
    if heads * width != config["hidden_size"]:
        raise UsageError(
            f"--sub-norms: {heads} heads of {width} are {heads * width} wide, but the BitNet family needs heads as wide as "
            f"the model, {config['hidden_size']}; leave the option out"
        )
    # Llama and BitNet have different defaults for these keys, so Llama's are written out.
    config = {"rope_theta": 10000.0, "rms_norm_eps": 1e-6, **{k: v for k, v in config.items() if v is not None}}
    return config | {"model_type": "bitnet", "architectures": ["BitNetForCausalLM"], "hidden_act": "silu"}


def _layer_source(layer: int, ours: int, theirs: int) -> tuple[int, int]:
    """Return the teacher layer that a student layer starts from, and the number of student layers that start from it."""
    if ours <= theirs:
        return (layer + 1) * theirs // ours - 1, 1
    source = layer * theirs // ours
    return source, sum(other * theirs // ours == source for other in range(ours))


def _halves(rows: F32, head_dim: int) -> F32:
    """Reorder rows of heads so that rotary pairs that are neighbours become halves of a head."""
    pairs = rows.reshape(-1, head_dim // 2, 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows.shape))


def ternary_latent(weight: F32, group_size: int) -> F32:
    """Return latent weights [out, in] whose absmean rounding is the best single ternary plane of ``weight``.

    The plane is fitted by ``quantize_planes`` per row and group. Its scales within a group of the student are averaged by
    least squares. Where the plane is 0 the latent weight is a quarter of the weight, which keeps the sign.
    """
    trits = quantize_planes(weight, 1, group_size or 64)[0][0].astype(np.float32)
    shape = (len(weight), -1, group_size) if group_size else (1, 1, weight.size)
    kept, signs = (0.25 * np.where(trits == 0, weight, 0)).reshape(shape), trits.reshape(shape)
    used = np.abs(signs).sum(-1, keepdims=True)
    count = shape[-1]
    scale = (weight.reshape(shape) * signs).sum(-1, keepdims=True) / np.maximum(used, 1)
    # Absmean takes the mean magnitude as the scale, so the nonzero elements are enlarged until the mean equals ``scale``.
    kept = np.clip(kept, -0.4 * scale, 0.4 * scale)
    magnitude = (scale * count - np.abs(kept).sum(-1, keepdims=True)) / np.maximum(used, 1)
    return (signs * magnitude + kept).reshape(weight.shape).astype(np.float32)


def make_student(checkpoint: Checkpoint, options: StudentOptions, positions: int) -> tuple[TorchGraph, dict[str, Any]]:
    """Return a student without weights, for rows of up to ``positions`` tokens, and its configuration.

    Raises:
        UnsupportedError, UsageError, BundleError: the options do not match the teacher.
    """
    config = student_config(checkpoint, options)
    ternary = Ternary(group_size=options.group_size) if options.method == "ternary" else None
    graph = build_graph(config)
    if graph.recurrent and options.layers and options.init != "random":
        raise UnsupportedError(
            f"--layers: the layers of a {config['model_type']!r} are of different kinds, so that one cannot begin with the "
            "weights of any other; leave the option out, or add --init random"
        )
    return TorchGraph(graph, positions=positions, ternary=ternary), config


def start_student(student: TorchGraph, checkpoint: Checkpoint, options: StudentOptions, seed: int = 0) -> None:
    """Set the initial weights that ``options`` select; ``seed`` determines random weights.

    Sub-norms that the teacher does not have are set to one.
    """
    if options.init == "random":
        student.draw(seed)
        return
    graph, sources = checkpoint_graph(checkpoint)
    load = tensor_loader(checkpoint, sources)
    theirs = int(checkpoint.config["num_hidden_layers"])
    ours = options.layers or theirs
    added = {name for op in student.graph.operations if isinstance(op, Add) for name in op.inputs}
    writers = {
        w for op in student.graph.operations if isinstance(op, Linear) and op.outputs[0] in added for w in op.weights
    }
    head_dim = next((state.head_dim for state in graph.states.values()), 0)

    def start(name: str) -> F32:
        match, source, times = _LAYER.fullmatch(name), name, 1
        if match:
            layer, times = _layer_source(int(match[1]), ours, theirs)
            source = f"model.layers.{layer}.{match[2]}"
        if _SUB_NORM.fullmatch(name) and source not in graph.weights:
            return np.ones(student.graph.weights[name].shape, np.float32)
        array = load(source)
        if checkpoint.config.get("rope_interleaved") and _ROTATED.fullmatch(name):
            array = _halves(array, head_dim)
        if name in writers:  # each copy of a repeated layer adds its part of the original layer's step
            array = array / np.float32(times)
        if options.init == "planes" and name in student.ternary_names:
            array = ternary_latent(array, options.group_size)
        return array

    student.fill(start)


@torch.no_grad()
def settle_sub_norms(student: TorchGraph, teacher: Graph, ids: torch.Tensor) -> None:
    """Set the gain of each new sub-norm so that it keeps the magnitude of its input, measured on ids [batch, n]."""
    for op in student.graph.operations:  # in order, because later sub-norms depend on earlier gains
        if isinstance(op, RmsNorm) and _SUB_NORM.fullmatch(op.weight) and op.weight not in teacher.weights:
            _, values = student(ids, None, (op.inputs[0],))
            student.tensors[op.weight].fill_(float(values[op.inputs[0]].float().square().mean().sqrt()))
