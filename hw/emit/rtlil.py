"""Conversion of components to RTLIL, with the same text in every process."""

from __future__ import annotations

from typing import Any

from amaranth.back import rtlil
from amaranth.hdl import ClockDomain, Const, Fragment, Value
from amaranth.hdl._ir import PortDirection
from amaranth.hdl._xfrm import DomainCollector
from amaranth.lib.wiring import In

__all__ = ["to_rtlil"]


def to_rtlil(component: Any, *, name: str = "top", platform: Any = None) -> str:
    """Return a component as RTLIL. Ports are named ``member__member``; those of the clock domains follow them.

    The constant ``ready`` of a stream that is always ready is not a port.

    Raises:
        ValueError: a member has the name of a clock or a reset.
    """
    ports: dict[str, tuple[Any, PortDirection]] = {}
    for path, member, value in component.signature.flatten(component):
        value = Value.cast(value)
        if not isinstance(value, Const):
            direction = PortDirection.Input if member.flow is In else PortDirection.Output
            ports["__".join(map(str, path))] = (value, direction)
    fragment = Fragment.get(component, platform)
    # Amaranth would create these domains in the order of a set of strings, which differs from process to process.
    for domain in _missing_domains(fragment):
        clock_domain = ClockDomain(domain)
        fragment.add_domains(clock_domain)
        for signal in (clock_domain.clk, clock_domain.rst):
            if signal.name in ports:
                raise ValueError(f"{name} has a member {signal.name}, which is the name of a port of domain {domain}")
            ports[signal.name] = (signal, PortDirection.Input)
    text: str = rtlil.convert(fragment, name=name, ports=ports, emit_src=False)
    return text


def _missing_domains(fragment: Any) -> list[str]:
    collector = DomainCollector()
    collector(fragment)
    return sorted(
        collector.used_domains - collector.defined_domains - {"comb"}, key=lambda name: (name != "sync", name)
    )
