"""Give the signals and submodules of a design names that a person can read in a timing report.

Amaranth makes the names of a module unique with a number of its own, as in ``register$28``, and calls an anonymous
submodule ``U$5``. Here a signal that belongs to a submodule carries that submodule's name outside of it, as in
``drain__output__valid``, and signals of one name are numbered in the order in which they are used: ``product_0``,
``product_1``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, MutableMapping, Sequence

from amaranth.hdl import Signal, Value
from amaranth.hdl._ast import SignalDict
from amaranth.hdl._ir import Design, Fragment
from amaranth.hdl._mem import MemoryInstance
from amaranth.lib.wiring import Component

__all__ = ["name_design", "tidy_ports"]

Owners = MutableMapping[Signal, tuple[Fragment, str]]

_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_PARTIAL_PORT = re.compile(r"(?<=\\)port\$(\d+)\$(\d+)(?=\s)")


def name_design(design: Design) -> None:
    """Replace the names of a design's submodules and signals; the names of its ports remain."""
    _name_submodules(design, design.fragment, design.hierarchy, {name for name, *_ in design.ports})
    owners = _owners(design)
    for fragment, info in design.fragments.items():
        ports = {name for name, *_ in design.ports} if fragment is design.fragment else set()
        reserved = ports | set(info.io_port_names.values())
        reserved |= {design.fragments[part].name[-1] for part, *_ in fragment.subfragments}
        signals = [signal for signal, name in info.signal_names.items() if name not in ports]
        wanted = [_wanted(design, fragment, signal, owners) for signal in signals]
        for signal, name in zip(signals, _numbered(wanted, reserved), strict=True):
            info.signal_names[signal] = name


def tidy_ports(text: str) -> str:
    """Rename in RTLIL the ports that Amaranth adds where a module uses a part of a signal."""
    return _PARTIAL_PORT.sub(r"bits_\1_\2", text)


def _name_submodules(design: Design, fragment: Fragment, hierarchy: tuple[str, ...], ports: set[str]) -> None:
    """Name anonymous submodules by their classes, and number those of one name, or of the name of one of ``ports``."""
    design.fragments[fragment].name = hierarchy
    names = _numbered([name or _class_name(part) for part, name, _ in fragment.subfragments], ports)
    for (part, *_), name in zip(fragment.subfragments, names, strict=True):
        _name_submodules(design, part, (*hierarchy, name), set())


def _class_name(fragment: Fragment) -> str:
    origin = next(iter(fragment.origins or ()), fragment)
    return _CAPITAL.sub("_", type(origin).__name__).lower()


def _owners(design: Design) -> Owners:
    """Return for each port of a component, or of a memory, the component's fragment and the port's name in others."""
    owners: Owners = SignalDict()
    for fragment in design.fragments:
        for signal, name in (*_members(fragment), *_memory_ports(fragment)):
            if signal not in owners:
                owners[signal] = (fragment, name)
    return owners


def _members(fragment: Fragment) -> Iterator[tuple[Signal, str]]:
    for origin in fragment.origins or ():
        if isinstance(origin, Component):
            for path, _, value in origin.signature.flatten(origin):
                if isinstance(signal := Value.cast(value), Signal):
                    yield signal, "__".join(map(str, path))


def _memory_ports(fragment: Fragment) -> Iterator[tuple[Signal, str]]:
    if isinstance(fragment, MemoryInstance):
        for kind, ports in (("read", fragment._read_ports), ("write", fragment._write_ports)):
            for port in ports:
                for member in ("addr", "data", "en"):
                    if isinstance(signal := getattr(port, f"_{member}"), Signal):
                        yield signal, f"{kind}_{member}"


def _wanted(design: Design, fragment: Fragment, signal: Signal, owners: Owners) -> str:
    """Return the name of a signal in a module before signals of one name are numbered."""
    own_name: str = re.sub(r"\$\d*", "", signal.name)
    if signal not in owners:
        return own_name
    owner, name = owners[signal]
    if owner is fragment:
        return name
    here, there = design.fragments[fragment].name, design.fragments[owner].name
    shared = 0
    while shared < min(len(here), len(there)) and here[shared] == there[shared]:
        shared += 1
    if shared == len(there):  # the owner contains this module
        return own_name
    return "__".join((*there[shared:], name))


def _numbered(wanted: Sequence[str], reserved: set[str]) -> list[str]:
    """Return unique names: those that occur once as they are, the others with numbers."""
    counts = Counter(wanted)
    taken = reserved | {name for name, count in counts.items() if count == 1}
    numbers = Counter[str]()
    names = []
    for name in wanted:
        unique = name
        if counts[name] > 1 or name in reserved:
            while (unique := f"{name}_{numbers[name]}") in taken:
                numbers[name] += 1
            taken.add(unique)
        names.append(unique)
    return names
