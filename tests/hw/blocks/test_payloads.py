from __future__ import annotations

import pytest
from amaranth.hdl import Shape

from edgedec.hw.blocks import payloads


@pytest.mark.parametrize(
    ("signature", "bits"),
    [
        (payloads.words(27, 3), 3 * 27 + 1),
        (payloads.words(8, 2, 4), 2 * 4 * 8 + 1),
        (payloads.codes(3, 16), 3 * 16 * 8 + 1),
        (payloads.maxima(4), 4 * 26 + 1),
        (payloads.roots(4), 4 * (16 + 8)),
        (payloads.scales(2), 2 * (16 + 8)),
    ],
)
def test_payloads_have_as_many_bits_as_their_descriptions_say(signature: object, bits: int) -> None:
    shape = signature.members["payload"].shape  # type: ignore[attr-defined]  # Amaranth has no types
    assert Shape.cast(shape).width == bits


def test_a_scale_holds_every_mantissa_and_exponent() -> None:
    ends = {"mantissa": (1 << 16) - 1, "exponent": -128}
    value = payloads.scale.const(ends)
    assert (value.mantissa, value.exponent) == (ends["mantissa"], ends["exponent"])
