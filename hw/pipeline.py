"""What the stream components share: the control of a pipeline that stalls as one, rounding shifts, saturation."""

from collections.abc import Callable, Sequence
from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value

from edgedec.hw.checks import check

__all__ = ["carried", "check", "delayed", "every", "fork", "pipeline", "reduced", "round_bit", "saturate"]


def pipeline(m: Module, sink: Any, offered: Any, stages: int) -> tuple[Signal, list[Signal]]:
    """Valid bits of a pipeline that ends at the output port ``sink`` and stalls as one.

    Args:
        offered: whether an item enters in a cycle in which the pipeline moves.
        stages: registers between the input and ``sink``.

    Returns:
        enable: the pipeline moves; all its registers load only then.
        valids: [stages], valids[i] after i + 1 registers; the last is ``sink.valid``.
    """
    enable = Signal()
    valids = [delayed(m, enable, offered)]
    while len(valids) < stages:
        valids.append(delayed(m, enable, valids[-1]))
    m.d.comb += [enable.eq(~valids[-1] | sink.ready), sink.valid.eq(valids[-1])]
    return enable, valids


def delayed(m: Module, enable: Value, x: Any, stages: int = 1) -> Any:
    """``x`` after so many registers that load when ``enable`` is high."""
    for _ in range(stages):
        register = Signal(x.shape())
        with m.If(enable):
            m.d.sync += register.eq(x)
        x = register
    return x


def carried(m: Module, enable: Value, x: Any, stages: int = 1) -> Any:
    """As ``delayed`` for data that a valid bit goes with: a reset leaves the registers alone.

    So synthesis may put them into shift-register LUTs and into the multiplier's own registers.
    """
    for _ in range(stages):
        register = Signal(x.shape(), reset_less=True)
        with m.If(enable):
            m.d.sync += register.eq(x)
        x = register
    return x


def reduced(m: Module, enable: Value, items: Sequence[Any], combine: Callable[[Any, Any], Value]) -> tuple[Any, int]:
    """All ``items`` combined in pairs, with a register after each level.

    Returns:
        the result, and how many registers it is late.
    """
    levels = 0
    while len(items) > 1:
        pairs = [combine(a, b) for a, b in zip(items[::2], items[1::2], strict=False)]
        rest = list(items[len(pairs) * 2 :])
        items = [carried(m, enable, x) for x in (*pairs, *rest)]
        levels += 1
    return items[0], levels


def every(conditions: Sequence[Value]) -> Value:
    """All of them; true if there are none."""
    found: Value = Cat(1, *conditions).all()
    return found


def fork(m: Module, source: Any, sinks: Sequence[Any]) -> None:
    """Every item of ``source`` to each of ``sinks``, which may take it in different cycles."""
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
    """The bit of ``x`` that ``x >> shift`` loses last: what rounding half up adds. 0 where shift is 0."""
    return (Cat(0, x) >> shift)[0]


def saturate(x: Value, bits: int) -> Value:
    """Clamp a signed ``x`` to the symmetric range of ``bits``, with no comparison longer than a wide AND.

    Returns:
        signed ``bits``.
    """
    most = (1 << (bits - 1)) - 1
    top = x[bits - 1 :]
    lowest = ~x[: bits - 1].any()  # only the sign is one: the pattern that the symmetric range leaves out
    inside = (top.all() & ~lowest) | ~top.any()
    found: Value = Mux(inside, x[:bits].as_signed(), Mux(x[-1], -most, most)).as_signed()
    return found[:bits].as_signed()
