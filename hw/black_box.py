"""A component that is synthesized by itself: what stands in its place in the design around it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from amaranth.hdl import ClockSignal, Instance, ResetSignal
from amaranth.lib.wiring import Component, In

__all__ = ["BlackBox"]

_SYNC: Mapping[str, str] = MappingProxyType({"sync": ""})


class BlackBox(Component):
    """An instance of a module, with a component's ports.

    Parameters:
        component: whose RTLIL, by ``amaranth.back.rtlil.convert``, that module is.
        module: its name there.
        domains: the clock domains that it has, and what the names of their ports ``clk`` and ``rst`` begin with there.

    Members: the component's.
    """

    def __init__(self, component: Component, *, module: str, domains: Mapping[str, str] = _SYNC) -> None:
        self._module, self._domains = module, domains
        super().__init__(component.signature)

    def elaborate(self, platform: Any) -> Instance:
        ports: dict[str, Any] = {}
        for domain, before in self._domains.items():
            ports[f"i_{before}clk"] = ClockSignal(domain)
            ports[f"i_{before}rst"] = ResetSignal(domain, allow_reset_less=True)
        for path, member, value in self.signature.flatten(self):
            ports[f"{'i' if member.flow is In else 'o'}_{'__'.join(map(str, path))}"] = value
        return Instance(self._module, **ports)
