"""The stand-in for a component that is synthesized separately."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from amaranth.hdl import ClockSignal, Instance, ResetSignal
from amaranth.lib.wiring import Component, In

__all__ = ["BlackBox"]

_SYNC: Mapping[str, str] = MappingProxyType({"sync": ""})


class BlackBox(Component):
    """An instance of a module with the ports of a component.

    Parameters:
        component: the component whose RTLIL, made by ``edgedec.hw.emit.rtlil.to_rtlil``, defines the module.
        module: name of the module.
        domains: clock domains of the module, each with the prefix of its ports ``clk`` and ``rst``.

    Members: those of the component.
    """

    def __init__(self, component: Component, *, module: str, domains: Mapping[str, str] = _SYNC) -> None:
        self._module, self._domains = module, domains
        super().__init__(component.signature)

    def elaborate(self, platform: Any) -> Instance:
        ports: dict[str, Any] = {}
        for domain, prefix in self._domains.items():
            ports[f"i_{prefix}clk"] = ClockSignal(domain)
            ports[f"i_{prefix}rst"] = ResetSignal(domain, allow_reset_less=True)
        for path, member, value in self.signature.flatten(self):
            ports[f"{'i' if member.flow is In else 'o'}_{'__'.join(map(str, path))}"] = value
        return Instance(self._module, **ports)
