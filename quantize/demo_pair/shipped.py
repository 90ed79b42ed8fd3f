"""Begin a training with the weights of the shipped pair, ``edgedec/demo``.

The shipped target holds trits and a scale for each matrix. Neither the latent weights that it was trained with nor its float
twin are kept: ``latent_weight`` makes weights that round to the same trits and scale, so that a training begins with the
results of the shipped target, and the twin begins with the target's weights as floats. The draft's weights are shipped as
they are, in bfloat16.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgedec.families import build_graph
from edgedec.quantize.demo_pair.stages import Earlier
from edgedec.quantize.distil.torch_graph import Ternary, TorchGraph
from edgedec.quantize.methods.native import find_ternary
from edgedec.quantize.readers import open_checkpoint

__all__ = ["latent_weight", "shipped_pair", "steps_before"]

# documents that the shipped pair was trained on, 5,000 for each 40 of its 13,600 steps
_DOCUMENTS = 1_700_000


def latent_weight(weight: NDArray[np.float32], name: str = "tensor") -> NDArray[np.float32]:
    """Return latent weights whose mean magnitude is the scale of a ternary matrix, and whose rounding has its trits.

    Args:
        weight: float32 [out, in] with one nonzero magnitude, the scale.
        name: name of the tensor, for a message.

    Returns:
        float32 [out, in]. With a third of the trits 0 and a scale of 2, the values are -3, 0 and 3.

    Raises:
        NotTernaryError: there are several nonzero magnitudes.
    """
    trits, scales, group_size = find_ternary(weight, name)
    assert group_size == 0, name
    used = max(1, int(np.count_nonzero(trits)))
    return trits.astype(np.float32) * np.float32(float(scales[0]) * trits.size / used)


def steps_before(shard_documents: int, shard_steps: int) -> int:
    """Return the step at which documents begin that the shipped pair was not trained on.

    Args:
        shard_documents: number of documents in a part of a training's text.
        shard_steps: number of steps that take their rows from a part.
    """
    return -(-_DOCUMENTS // shard_documents) * shard_steps


def shipped_pair(folder: Path, shard_documents: int, shard_steps: int) -> Earlier:
    """Return the weights of the checkpoints ``target`` and ``draft`` in a folder as what a training goes on from.

    The text begins as ``steps_before`` says for the other arguments.

    Raises:
        UsageError, BundleError, UnsupportedError: see ``open_checkpoint``.
        NotTernaryError: the target has floats.
    """
    target, draft = open_checkpoint(folder / "target"), open_checkpoint(folder / "draft")
    graph = build_graph(target.config)
    ternary = TorchGraph(graph, positions=1, ternary=Ternary()).ternary_names
    floats = {name: np.ascontiguousarray(target.load(name), np.float32) for name in graph.weights}
    latent = {name: latent_weight(floats[name], name) for name in ternary}
    small = {name: np.ascontiguousarray(draft.load(name), np.float32) for name in build_graph(draft.config).weights}
    return Earlier(
        steps=steps_before(shard_documents, shard_steps),
        layers=int(target.config["num_hidden_layers"]),
        weights={"twin": _tensors(floats), "target": _tensors(floats | latent), "draft": _tensors(small)},
    )


def _tensors(arrays: dict[str, NDArray[np.float32]]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}
