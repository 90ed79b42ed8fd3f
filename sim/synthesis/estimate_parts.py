"""Separate an accelerator into the parts of its estimate, so that each can be synthesized by itself."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from amaranth.hdl import Const, Instance, Module, UnusedElaboratable, Value
from amaranth.lib.wiring import In

from edgedec.hw.accelerator import ADDRESS_BITS, Accelerator
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.datapath import Datapath
from edgedec.hw.emit.yosys import to_rtlil
from edgedec.hw.memory.cache_writer import CacheWriter
from edgedec.hw.memory.router import Router
from edgedec.hw.plan.estimate import estimate
from edgedec.sim.synthesis.estimate_synthesis import SynthesisDesign

__all__ = ["CONFIGS", "QUICK", "EstimateCase", "Parts", "whole"]

_GLUE = "glue"
_OWNERS = {"": Accelerator, "datapath": Datapath}
_RESET: Mapping[str, Callable[[AcceleratorConfig], Any]] = {
    "router": Router,
    "cache": lambda config: CacheWriter(config, address_bits=ADDRESS_BITS),
    "prefetcher": lambda config: Accelerator(config).prefetcher,
    "writer": lambda config: Accelerator(config).writer,
}  # parts that the top wraps in a reset
_CONSTANTS = "datapath.constants"  # estimated with the unpacker of rows to load; the logic between its parts is glue
_NAMES = MappingProxyType({"datapath.attention.heads": "attention"})  # part -> its name as a submodule


@dataclass(frozen=True, kw_only=True)
class EstimateCase:
    """A configuration whose estimate is compared with a synthesis.

    Members:
        slow: parts that take yosys more than about three minutes; they are left out of both sides.
    """

    config: AcceleratorConfig
    slow: tuple[str, ...] = ()


_SMALL = AcceleratorConfig(
    beat_bytes=8,
    ports=2,
    slots=4,
    tile_rows=40,
    context=48,
    width=72,
    hidden=36,
    heads=4,
    kv_heads=2,
    head_dim=8,
    top_k=4,
    prefetch_beats=64,
    instructions=256,
    scaling=True,
)
_TINY = AcceleratorConfig(
    beat_bytes=4,
    ports=1,
    slots=1,
    tile_rows=20,
    context=16,
    width=16,
    hidden=12,
    heads=1,
    kv_heads=1,
    head_dim=8,
    top_k=2,
    prefetch_beats=16,
    instructions=256,
)
CONFIGS: Mapping[str, EstimateCase] = MappingProxyType(
    {
        "tiny": EstimateCase(config=_TINY),
        "small": EstimateCase(config=_SMALL),
        "planes": EstimateCase(
            config=replace(
                _SMALL,
                slots=2,
                tile_rows=320,
                context=256,
                width=512,
                hidden=256,
                head_dim=32,
                softmax_lanes=2,
                per_row=False,
                top_k=8,
                prefetch_beats=1024,
                ultra=False,
            )
        ),
        "sixteen": EstimateCase(
            config=AcceleratorConfig(
                beat_bytes=16,
                ports=4,
                slots=2,
                tile_rows=640,
                context=512,
                width=1536,
                hidden=576,
                heads=9,
                kv_heads=3,
                head_dim=64,
                prefetch_beats=2048,
                instructions=1024,
            )
        ),
        "eight": EstimateCase(
            config=replace(
                _SMALL,
                beat_bytes=4,
                ports=1,
                slots=8,
                scaling=False,
                tile_rows=640,
                context=128,
                width=256,
                hidden=128,
                head_dim=16,
                ultra=False,
            ),
        ),
        "wide": EstimateCase(
            config=AcceleratorConfig(
                beat_bytes=32,
                ports=2,
                slots=1,
                tile_rows=1280,
                context=1024,
                width=2048,
                hidden=768,
                heads=12,
                kv_heads=4,
                head_dim=64,
                softmax_lanes=2,
                top_k=4,
                scaling=True,
            )
        ),
        "kv260": EstimateCase(
            config=AcceleratorConfig(),
            slow=("datapath.matrix.engine", "datapath.attention.heads", "datapath.mac", "datapath.glue"),
        ),
    }
)
QUICK = ("tiny", "small")


class Parts:
    """The parts of an accelerator.

    Members:
        paths: paths of the parts in edgedec.hw.plan.estimate.

    Args:
        config: configuration of the accelerator.
        platform: platform of the elaboration, such as one of edgedec.board.FAMILIES.
    """

    def __init__(self, config: AcceleratorConfig, platform: Any = None) -> None:
        warnings.simplefilter("ignore", UnusedElaboratable)  # parts are used without the top that contains them
        self._config, self._platform = config, platform
        self.paths = tuple(estimate(config).parts)
        self._built: dict[str, Any] = {}  # submodules by the path of their parent

    def designs(self, path: str) -> list[SynthesisDesign]:
        """Return the designs of a part: one, or several if they are estimated together."""
        owner, _, name = path.rpartition(".")
        if name == _GLUE:
            return [self._glue(owner)]
        if path in _RESET:
            return [self._design(_RESET[path](self._config))]
        if path == _CONSTANTS:
            inner = [self._submodules(path)[one] for one in self._owner(path).resources_by_part]
            return [self._design(part) for part in (self._submodules("datapath")["load"], *inner)]
        return [self._design(self._submodules(owner)[_NAMES.get(path, name)])]

    def _design(self, component: Any) -> SynthesisDesign:
        return SynthesisDesign(text=to_rtlil(component, platform=self._platform))

    def _owner(self, path: str) -> Any:
        if path in _OWNERS:
            return _OWNERS[path](self._config)
        parent, _, name = path.rpartition(".")
        return self._submodules(parent)[name]

    def _submodules(self, path: str) -> Any:
        if path not in self._built:
            self._built[path] = _elaborated(self._owner(path), self._platform).submodules
        return self._built[path]

    def _glue(self, owner: str) -> SynthesisDesign:
        """Return a component whose parts are replaced by their ports."""
        built = Parts(self._config, self._platform)._owner(owner)
        module = _elaborated(built, self._platform)
        mine = [path.removeprefix(f"{owner}.").split(".")[0] for path in self.paths if path.startswith(f"{owner}.")]
        names = dict.fromkeys(_NAMES.get(f"{owner}.{name}", name) for name in mine if name not in (_GLUE, "constants"))
        boxes = [_emptied(module.submodules[name], f"part_{name}") for name in names]
        if owner == "datapath":
            boxes += [_emptied(module.submodules["load"], "part_load"), *self._emptied_constants(module)]
        built.elaborate = lambda platform: module
        return SynthesisDesign(text=to_rtlil(built, platform=self._platform) + "".join(boxes))

    def _emptied_constants(self, module: Any) -> list[str]:
        """Replace the parts of the constants of a data path by cells, and return the cells' modules."""
        constants = module.submodules["constants"]
        inner = _elaborated(constants, self._platform)
        constants.elaborate = lambda platform: inner
        return [_emptied(inner.submodules[name], f"part_{name}") for name in constants.resources_by_part]


def _elaborated(component: Any, platform: Any) -> Module:
    """Return the module of a component; that of a data path is without resets, which would hide its parts."""
    if not isinstance(component, Datapath):
        return component.elaborate(platform)
    parts, module = component.build()
    for name, part in parts.items():
        module.submodules[name] = part
    return module


def _emptied(component: Any, name: str) -> str:
    """Replace a component by a cell of this name, and return the cell's module as RTLIL."""
    ports: dict[str, Any] = {}
    lines: list[str] = []
    for path, member, value in component.signature.flatten(component):
        value = Value.cast(value)
        if not isinstance(value, Const) and len(value):
            kind, port = ("i", "input") if member.flow is In else ("o", "output"), "__".join(map(str, path))
            ports[f"{kind[0]}_{port}"] = value
            lines.append(f"  wire width {len(value)} {kind[1]} {len(lines) + 1} \\{port}\n")
    inside = Module()
    inside.submodules += Instance(name, **ports)
    component.elaborate = lambda platform: inside
    return f"attribute \\blackbox 1\nmodule \\{name}\n{''.join(lines)}end\n"


def whole(config: AcceleratorConfig) -> SynthesisDesign:
    """Return the design of a whole accelerator."""
    return SynthesisDesign(text=to_rtlil(Accelerator(config)))
