"""Round weights as llama.cpp's Q4_0 does, to compare its perplexity with that of ``--method int4`` at equal bytes.

Source: ``quantize_row_q4_0_ref`` of ggml's ggml-quants.c.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.bundle import Bundle, BundleWriter
from edgedec.schemes import Int4Scheme

__all__ = ["q4_0_parts", "write_q4_0_bundle"]


def q4_0_parts(weight: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
    """Return the stored parts of ``Int4Scheme`` for a matrix float32 [out, in] with the codes and scales of Q4_0.

    The value of a group with the largest magnitude gets the code -8. GGML has no Q4_0 for rows that are not a multiple of
    32; here they are filled with zeros.
    """
    scheme, (outputs, inputs) = Int4Scheme(), weight.shape
    filled = np.zeros((outputs, scheme.groups(inputs) * scheme.GROUP), np.float32)
    filled[:, :inputs] = weight
    groups = filled.reshape(outputs, -1, scheme.GROUP)
    largest = np.take_along_axis(groups, np.abs(groups).argmax(axis=-1)[..., None], axis=-1)
    scale = largest / np.float32(-8)
    with np.errstate(divide="ignore"):
        inverse = np.where(scale == 0, np.float32(0), np.float32(1) / scale)
    codes = np.clip(np.trunc(groups * inverse + np.float32(8.5)), 0, 15).astype(np.uint8)
    codes = codes.reshape(outputs, -1)[:, :inputs]
    return {"codes": scheme.pack(codes), "scale": scale[..., 0].astype(np.float16)}


def write_q4_0_bundle(int4: Bundle, load: Callable[[str], NDArray[np.float32]], output: Path) -> None:
    """Write a bundle that equals ``int4`` except for the codes and scales of its int4 matrices, which are those of Q4_0.

    Args:
        int4: a bundle of ``--method int4``.
        load: returns the float weights of a matrix of that name, float32 [out, in].
        output: the folder to write.
    """
    with BundleWriter.create(output) as writer:
        for name, tensor in int4.tensors.items():
            if tensor.scheme == Int4Scheme():
                parts = q4_0_parts(load(name))
            else:
                parts = {part: int4.array(name, part) for part in tensor.scheme.parts(tensor.shape)}
            writer.add(name, tensor.scheme, tensor.shape, parts)
        writer.finish(
            config=int4.config,
            quantization={"method": "int4", "rounding": "Q4_0"},
            tokens=int4.tokens,
            tokenizer_json=int4.tokenizer_file.read_text("utf-8"),
            chat_template=int4.chat_template,
        )
