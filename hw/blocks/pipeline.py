"""Building blocks of stream components: control of a pipeline that stalls as one, rounding shifts, saturation."""

from collections.abc import Callable, Sequence
from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value

from edgedec.hw.isa.checks import check

__all__ = ["carried", "check", "delayed", "every", "fork", "pipeline", "reduced", "round_bit", "saturate"]


def pipeline(m: Module, sink: Any, offered: Any, stages: int) -> tuple[Signal, list[Signal]]:
    """Return the valid bits of a pipeline that ends at the output port ``sink`` and stalls as one.

    Args:
        offered: whether an item enters in a cycle in which the pipeline moves.
        stages: number of registers between the input and ``sink``.

    Returns:
        enable: signal that is high while the pipeline moves; all its registers load only then.
        valids: list [stages], where valids[i] follows the input by i + 1 registers; the last one drives ``sink.valid``.
    """
    enable = Signal()
    valids = [delayed(m, enable, offered)]
    while len(valids) < stages:
        valids.append(delayed(m, enable, valids[-1]))
    m.d.comb += [enable.eq(~valids[-1] | sink.ready), sink.valid.eq(valids[-1])]
    return enable, valids


def delayed(m: Module, enable: Value, x: Any, stages: int = 1) -> Any:
    """Return ``x`` after ``stages`` registers that load when ``enable`` is high."""
    for _ in range(stages):
        register = Signal(x.shape())
        with m.If(enable):
            m.d.sync += register.eq(x)
        x = register
    return x


def carried(m: Module, enable: Value, x: Any, stages: int = 1) -> Any:
    """Delay data that a valid bit accompanies: like ``delayed``, but a reset does not touch the registers.

    Synthesis can therefore use shift-register LUTs and the registers inside multipliers.
    """
    for _ in range(stages):
        register = Signal(x.shape(), reset_less=True)
        with m.If(enable):
            m.d.sync += register.eq(x)
        x = register
    return x


def reduced(m: Module, enable: Value, items: Sequence[Any], combine: Callable[[Any, Any], Value]) -> tuple[Any, int]:
    """Combine all ``items`` in pairs, with a register after each level.

    Returns:
        the result, and the number of registers before it.
    """
    levels = 0
    while len(items) > 1:
        pairs = [combine(a, b) for a, b in zip(items[::2], items[1::2], strict=False)]
        rest = list(items[len(pairs) * 2 :])
        items = [carried(m, enable, x) for x in (*pairs, *rest)]
        levels += 1
    return items[0], levels


def every(conditions: Sequence[Value]) -> Value:
    """Return the conjunction of ``conditions``; true if there are none."""
    result: Value = Cat(1, *conditions).all()
    return result


def fork(m: Module, source: Any, sinks: Sequence[Any]) -> None:
    """Send every item of ``source`` to each of ``sinks``, which may take it in different cycles."""
    taken = [Signal(name=f"taken_{i}") for i in range(len(sinks))]
    m.d.comb += source.ready.eq(every([was | sink.ready for was, sink in zip(taken, sinks, strict=True)]))
    for was, sink in zip(taken, sinks, strict=True):
        m.d.comb += [
            Value.cast(sink.payload).eq(Value.cast(source.payload)),
            sink.valid.eq(source.valid & ~was),
        ]
        with m.If(source.valid):
            m.d.sync += was.eq((was | sink.ready) & ~source.ready)


def round_bit(x: Value, shift: Value) -> Value:
    """Return the highest bit of ``x`` that ``x >> shift`` drops, which rounding half up adds; 0 if ``shift`` is 0."""
    return (Cat(0, x) >> shift)[0]


def saturate(x: Value, bits: int) -> Value:
    """Clamp a signed ``x`` to the symmetric range of ``bits``, with no comparison wider than an AND of the upper bits.

    Returns:
        the clamped value, signed(bits).
    """
    most = (1 << (bits - 1)) - 1
    top = x[bits - 1 :]
    lowest = ~x[: bits - 1].any()  # only the sign bit is set: the value that the symmetric range leaves out
    inside = (top.all() & ~lowest) | ~top.any()
    result: Value = Mux(inside, x[:bits].as_signed(), Mux(x[-1], -most, most)).as_signed()
    return result[:bits].as_signed()
