"""The bits of keys and values that a plan may choose by itself."""

from __future__ import annotations

import math
from collections.abc import Mapping

from edgedec.bundle.bundle import Bundle
from edgedec.bundle.manifest import KV_PERPLEXITY
from edgedec.errors import BundleError

__all__ = ["LEAST_BITS", "MOST_LOSS", "automatic_bits", "measured_ratios"]

LEAST_BITS = 8  # bits that change no perplexity that was measured by more than 0.3 % (docs/memory.md)
MOST_LOSS = 0.01  # most that fewer bits may add to the perplexity, as a share, before a plan may choose them


def measured_ratios(bundle: Bundle) -> dict[int, float]:
    """Return, by bits of keys and values, the perplexity over that with the default bits, as ``quantize`` measured it.

    A bundle without the table gives an empty one.

    Example:
        A manifest with ``{"quantization": {"kv_perplexity": {"8": 1.0002, "4": 1.056}}}`` gives ``{8: 1.0002, 4: 1.056}``.

    Raises:
        BundleError: the table is not one of ratios above zero by bits.
    """
    table = bundle.quantization.get(KV_PERPLEXITY, {})
    ratios: dict[int, float] = {}
    for bits, ratio in table.items() if isinstance(table, Mapping) else [("", table)]:
        number = isinstance(ratio, int | float) and not isinstance(ratio, bool)
        if bits not in ("4", "8", "16") or not number or not 0 < ratio < math.inf:
            raise BundleError(
                f"{bundle.path}: {KV_PERPLEXITY} of the manifest must have ratios of perplexities by bits (4, 8 or 16), "
                f"not {bits!r}: {ratio!r}; quantize the model again"
            )
        ratios[int(bits)] = float(ratio)
    return ratios


def automatic_bits(choices: tuple[int, ...], bundle: Bundle) -> tuple[int, ...]:
    """Return the bits that a plan may choose without being asked, the default first.

    Args:
        choices: the bits that the target supports, its default first.
        bundle: the model. Fewer than ``LEAST_BITS`` bits ruin the text of some models, so they are among the result only
            if the bundle's own table says that they add ``MOST_LOSS`` to its perplexity at most.

    Raises:
        BundleError: the table is damaged.
    """
    ratios = measured_ratios(bundle)
    return choices[:1] + tuple(
        bits
        for bits in choices[1:]
        if bits < choices[0] and (bits >= LEAST_BITS or ratios.get(bits, math.inf) <= 1 + MOST_LOSS)
    )
