"""Building blocks of stream components: control of a pipeline that stalls as one, rounding shifts, saturation."""

from collections.abc import Callable, Sequence
from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.hdl._ast import Slice
from amaranth.tracer import get_var_name

from edgedec.hw.blocks.contract import contract
from edgedec.hw.isa.checks import check

__all__ = [
    "carried",
    "check",
    "clamped",
    "copies",
    "countdown",
    "delayed",
    "every",
    "first_or_others",
    "fork",
    "pipeline",
    "reduced",
    "round_bit",
    "saturate",
]


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
    valids = [delayed(m, enable, offered, name="valid")]
    while len(valids) < stages:
        valids.append(delayed(m, enable, valids[-1], name="valid"))
    m.d.comb += [enable.eq(~valids[-1] | sink.ready), sink.valid.eq(valids[-1])]
    return enable, valids


def delayed(m: Module, enable: Value, x: Any, stages: int = 1, *, name: str | None = None) -> Any:
    """Return ``x`` after ``stages`` registers that load when ``enable`` is high.

    Args:
        name: name of the last register; by default that of the variable to which the result is assigned, or else a name
            made from that of ``x``.
    """
    return _chain(m, enable, x, stages, name or _variable(x), reset_less=False)


def carried(m: Module, enable: Value, x: Any, stages: int = 1, *, name: str | None = None) -> Any:
    """Delay data that a valid bit accompanies: like ``delayed``, but a reset does not touch the registers.

    Synthesis can therefore use shift-register LUTs and the registers inside multipliers.
    """
    return _chain(m, enable, x, stages, name or _variable(x), reset_less=True)


def _chain(m: Module, enable: Value, x: Any, stages: int, name: str, *, reset_less: bool) -> Any:
    for left in reversed(range(stages)):
        register = Signal(
            x.shape(), name=f"{name}_before_{left}" if left else name, reset_less=reset_less, src_loc_at=2
        )
        with m.If(enable):
            m.d.sync += register.eq(x)
        x = register
    return x


def _variable(x: Any) -> str:
    """Return the name of the variable to which the caller of the caller assigns its result; or a name made from ``x``."""
    variable: str | None = get_var_name(depth=3, default=None)
    if variable is not None:
        return variable
    x = Value.cast(x)
    while isinstance(x, Slice):
        x = x.value
    return f"{x.name}_late" if isinstance(x, Signal) else "late"


def copies(m: Module, x: Any, count: int, *, name: str) -> list[Signal]:
    """Return ``count`` registers that all load ``x``, for a value that one register could not send to all its loads.

    The attribute is the one by which yosys and Vivado know that equal registers must not be merged.
    """
    registers = [Signal(x.shape(), name=f"{name}_{i}", reset_less=True, attrs={"keep": "true"}) for i in range(count)]
    m.d.sync += [register.eq(x) for register in registers]
    return registers


def countdown(m: Module, name: str, *, load: Value, count: Value, step: Value) -> Signal:
    """Return a register that is high at the last of ``count`` steps, with the comparison made one step ahead.

    Args:
        load: whether a new count begins in the next cycle; it may coincide with the last step of the one before.
        count: number of steps; 0 means ``2 ** len(count)``.
        step: whether a step is made.
    """
    left = Signal(len(count), name=f"{name}_left")
    last = Signal(name=f"{name}_last")
    with m.If(load):
        m.d.sync += [left.eq(count), last.eq(count == 1)]
    with m.Elif(step):
        m.d.sync += [left.eq(left - 1), last.eq(left == 2)]
    return last


def reduced(
    m: Module, enable: Value, items: Sequence[Any], combine: Callable[[Any, Any], Value], *, name: str | None = None
) -> tuple[Any, int]:
    """Combine all ``items`` in pairs, with a register after each level.

    Args:
        name: name of the registers; their level is appended.

    Returns:
        the result, and the number of registers before it.
    """
    name = name or "reduced"
    levels = 0
    while len(items) > 1:
        pairs = [combine(a, b) for a, b in zip(items[::2], items[1::2], strict=False)]
        rest = list(items[len(pairs) * 2 :])
        items = [carried(m, enable, x, name=f"{name}_level_{levels}") for x in (*pairs, *rest)]
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


def first_or_others(m: Module, first: Any, others: Any, name: str, one: str) -> Any:
    """Return a new stream that ``first`` takes when it takes something, and ``others`` at other times.

    Args:
        first: a stream whose ``ready`` does not follow its ``valid``, or it would take each item.
        name: name of the new stream's signals.
        one: message of the contract that both are never ready at once.
    """
    source = first.signature.create(path=(name,))
    m.d.comb += [
        first.payload.eq(source.payload),
        first.valid.eq(source.valid),
        others.payload.eq(source.payload),
        others.valid.eq(source.valid & ~first.ready),
        source.ready.eq(first.ready | others.ready),
    ]
    contract(m, ~(first.ready & others.ready), one)
    return source


def round_bit(x: Value, shift: Value) -> Value:
    """Return the highest bit of ``x`` that ``x >> shift`` drops, which rounding half up adds; 0 if ``shift`` is 0."""
    return (Cat(0, x) >> shift)[0]


def clamped(x: Value, bits: int) -> Value:
    """Return a value above its rounding bit, clamped to one bit more than a code of ``bits``, which still saturates."""
    top = x[bits + 1 :]
    inside = top.all() | ~top.any()
    limit = Mux(x[-1], -(1 << (bits + 1)), (1 << (bits + 1)) - 1)
    result: Value = Mux(inside, x, limit)[: bits + 2].as_signed()
    return result


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
