"""Conversion of components to RTLIL, with the same text in every process."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from amaranth.back import rtlil
from amaranth.hdl import ClockDomain, Const, Fragment, Value
from amaranth.hdl._ast import SignalDict
from amaranth.hdl._ir import PortDirection, build_netlist
from amaranth.hdl._xfrm import DomainCollector
from amaranth.lib.wiring import In

from edgedec.hw.blocks.collisions import COLLISION_FREE
from edgedec.hw.emit.names import name_design, tidy_ports
from edgedec.hw.emit.stamping import stamped
from edgedec.progress import Progress, silent

__all__ = ["VIOLATED", "to_rtlil"]

VIOLATED = "violated_"  # start of the name of a register that stays high after an assertion failed; its message follows
_ELABORATED, _NETLISTED = 20, 60  # percent of the time of ``to_rtlil`` after two of its steps, of a large accelerator
_CHECK = re.compile(r"^  cell \$check \S+\n(.*?)^  end\n", re.MULTILINE | re.DOTALL)
_CONNECTION = re.compile(r"^    connect \\(A|EN|TRG) (.+)$", re.MULTILINE)
_KEPT = re.compile(r'^  attribute \\keep "true"\n(?:  attribute .*\n)*  wire width \d+ (\\\S+)$', re.MULTILINE)
_FLIP_FLOP = re.compile(r"^  cell \$dff \S+\n(?:    .*\n)*?    connect \\Q (\\\S+)(?: \[\d+:0\])?\n", re.MULTILINE)
_MARK = re.compile(rf"^  attribute \\{COLLISION_FREE} .*\n((?:  attribute .*\n)*  memory .* \\(\S+)\n)", re.MULTILINE)
_READ = re.compile(
    r'^(    parameter \\MEMID "\\\\(\S+)"\n(?:    parameter .*\n)*?    parameter \\COLLISION_X_MASK \d+\')(0+)$',
    re.MULTILINE,
)
_FORMAT = re.compile(r'^    parameter \\FORMAT "(.*)"$', re.MULTILINE)


def to_rtlil(
    component: Any,
    *,
    name: str = "top",
    platform: Any = None,
    checks: Literal["drop", "keep", "register"] = "drop",
    progress: Progress = silent,
) -> str:
    """Return a component as RTLIL. Ports are named ``member__member``; those of the clock domains follow them.

    All other names are those of ``edgedec.hw.emit.names``.

    The constant ``ready`` of a stream that is always ready is not a port. An accelerator in the design gets the text's hash
    (``edgedec.hw.emit.stamping``).

    Args:
        checks: treatment of the assertions of ``edgedec.hw.blocks.contract``. "drop" removes them, which is right for
            hardware. "keep" keeps them for a simulator or a solver that understands them. "register" replaces each by a
            register whose name is ``VIOLATED`` and the message with underscores, and which stays high after a failure.
        progress: called with the step, and the percent that are done, of 100. A large accelerator takes minutes.

    Raises:
        ValueError: a member has the name of a clock or a reset.
    """
    ports: dict[str, tuple[Any, PortDirection]] = {}
    for path, member, value in component.signature.flatten(component):
        value = Value.cast(value)
        if not isinstance(value, Const):
            direction = PortDirection.Input if member.flow is In else PortDirection.Output
            ports["__".join(map(str, path))] = (value, direction)
    progress("elaborating", 0, 100)
    fragment = Fragment.get(component, platform)
    # Amaranth would create these domains in the order of a set of strings, which differs from process to process.
    for domain in _missing_domains(fragment):
        clock_domain = ClockDomain(domain)
        fragment.add_domains(clock_domain)
        for signal in (clock_domain.clk, clock_domain.rst):
            if signal.name in ports:
                raise ValueError(f"{name} has a member {signal.name}, which is the name of a port of domain {domain}")
            ports[signal.name] = (signal, PortDirection.Input)
    design = fragment.prepare(ports=ports, hierarchy=(name,))
    name_design(design)
    text = _kept(tidy_ports(_converted(design, progress)))
    text = _collision_free(text, reads_old=getattr(platform, "reads_old", True))
    if checks != "keep":
        modules = text.split("\nend\n")  # each has names of its own
        text = "\nend\n".join(_CHECK.sub(_Registers() if checks == "register" else "", module) for module in modules)
    return stamped(text)


class _Counted(dict[Any, Any]):
    """The fragments of a design, which reports how many of them have been looked up."""

    def __init__(self, fragments: Mapping[Any, Any], report: Callable[[float], None]) -> None:
        super().__init__(fragments)
        self._report, self._seen = report, set[int]()

    def __getitem__(self, fragment: Any) -> Any:
        if id(fragment) not in self._seen:
            self._seen.add(id(fragment))
            self._report(len(self._seen) / len(self))
        return super().__getitem__(fragment)


def _converted(design: Any, progress: Progress) -> str:
    """Return the text of ``rtlil.convert_fragment(design, emit_src=False)``, with reports from inside."""

    def report(step: str, first: int, last: int) -> Callable[[float], None]:
        return lambda share: progress(step, first + int(share * (last - first)), 100)

    design.fragments = _Counted(design.fragments, report("netlist", _ELABORATED, _NETLISTED))
    netlist, names = build_netlist(design), SignalDict()
    empty, text = rtlil.EmptyModuleChecker(netlist), rtlil.Design(emit_src=False)
    emitted = report("RTLIL", _NETLISTED, 100)
    for index, module in enumerate(netlist.modules):
        emitted(index / len(netlist.modules))
        if not empty.is_empty(index):
            builder = text.module(".".join(module.name), src_loc=module.src_loc)
            if index == 0:
                builder.attribute("top", 1)
            rtlil.ModuleEmitter(builder, netlist, module, names, empty_checker=empty).emit()
    return str(text)


def _kept(text: str) -> str:
    """Give the attribute ``keep`` of a signal to its register, too: yosys reads it there when it merges equal registers."""
    modules = text.split("\nend\n")
    for number, module in enumerate(modules):
        if kept := set(_KEPT.findall(module)):
            modules[number] = _FLIP_FLOP.sub(
                lambda cell: f"  attribute \\keep 1\n{cell[0]}" if cell[1] in kept else cell[0], module
            )
    return "\nend\n".join(modules)


def _collision_free(text: str, *, reads_old: bool) -> str:
    """Remove the marks of ``edgedec.hw.blocks.collisions``.

    Without ``reads_old``, yosys is told that no read of a marked memory has to give the old value.
    """
    modules = text.split("\nend\n")
    for number, module in enumerate(modules):
        if marked := {name for _, name in _MARK.findall(module)}:
            module = _MARK.sub(r"\1", module)
            if not reads_old:
                module = _READ.sub(
                    lambda read: read[1] + (read[3].replace("0", "1") if read[2] in marked else read[3]), module
                )
            modules[number] = module
    return "\nend\n".join(modules)


class _Registers:
    """The replacement of each clocked assertion of a module by a register."""

    def __init__(self) -> None:
        self._names = set[str]()

    def __call__(self, cell: re.Match[str]) -> str:
        connections = dict(_CONNECTION.findall(cell[1]))
        message = _FORMAT.search(cell[1])
        assert message is not None
        base = name = VIOLATED + re.sub(r"\W+", "_", message[1])
        while name in self._names:
            name = f"{base}_{len(self._names)}"
        self._names.add(name)
        holds, enabled, clock = connections["A"], connections["EN"], connections["TRG"]
        fails, now, stays = (f"${name}_{part}" for part in ("fails", "now", "stays"))
        return "".join(
            (
                *(f"  wire width 1 {wire}\n" for wire in (fails, now, stays)),
                f"  attribute \\init 1'0\n  attribute \\keep 1\n  wire width 1 \\{name}\n",
                _cell("not", name, A=holds, Y=fails),
                _cell("and", name, A=fails, B=enabled, Y=now),
                _cell("or", name, A=now, B=f"\\{name}", Y=stays),
                f"  cell $dff ${name}_register\n    parameter \\WIDTH 1\n    parameter \\CLK_POLARITY 1\n"
                f"    connect \\D {stays}\n    connect \\CLK {clock}\n    connect \\Q \\{name}\n  end\n",
            )
        )


def _cell(kind: str, name: str, **connections: str) -> str:
    """Return a logic cell of one bit."""
    signed = "".join(f"    parameter \\{port}_SIGNED 0\n" for port in connections if port != "Y")
    widths = "".join(f"    parameter \\{port}_WIDTH 1\n" for port in connections)
    wires = "".join(f"    connect \\{port} {signal}\n" for port, signal in connections.items())
    return f"  cell ${kind} ${name}_{kind}\n{signed}{widths}{wires}  end\n"


def _missing_domains(fragment: Any) -> list[str]:
    collector = DomainCollector()
    collector(fragment)
    return sorted(
        collector.used_domains - collector.defined_domains - {"comb"}, key=lambda name: (name != "sync", name)
    )
