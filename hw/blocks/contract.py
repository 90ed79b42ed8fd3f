"""Assertions of what a component relies on and cannot see to itself, active in every simulation and every proof."""

from amaranth.hdl import Assert, Module, Value

__all__ = ["contract"]


def contract(m: Module, holds: Value, message: str) -> None:
    """Assert that ``holds`` is high at every edge of the clock of the domain "sync".

    A failure ends a simulation with the message: Amaranth's simulator raises AssertionError, a cocotb bench fails, a
    compiled accelerator raises DeviceError. Hardware has no trace of it (``edgedec.hw.emit.rtlil``).

    Args:
        message: the rule as a sentence without its stop, in which a register's name can be seen.
    """
    m.d.sync += Assert(holds, message)
