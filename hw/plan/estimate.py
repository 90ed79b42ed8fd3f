"""Estimated resources of an accelerator before synthesis: by part, in total, and as shares of a board's device."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from edgedec.board import Board
from edgedec.errors import UsageError
from edgedec.hw.accelerator import Accelerator
from edgedec.hw.blocks.resources import Resources, total
from edgedec.hw.config import AcceleratorConfig

__all__ = ["Estimate", "estimate"]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The estimate of one configuration.

    Members:
        config: configuration of the accelerator.
        parts: resources of each submodule of the Accelerator by its path, in the order of construction.
        in_multipliers: adders and registers around the MacArray's multipliers, which DSP48E2s contain; not in
            ``total``.
    """

    config: AcceleratorConfig
    parts: Mapping[str, Resources]
    in_multipliers: Resources

    @property
    def total(self) -> Resources:
        return total(self.parts.values())

    @property
    def unpacked(self) -> "Estimate":
        """The estimate if no tool puts the adders and registers around the MacArray's multipliers into them."""
        return replace(self, parts={**self.parts, "adders": self.in_multipliers})

    def under(self, path: str) -> Resources:
        """Return the resources of a submodule with all that is in it, such as "datapath.matrix".

        Raises:
            UsageError: no part has that path.
        """
        matches = [part for name, part in self.parts.items() if name == path or name.startswith(f"{path}.")]
        if not matches:
            raise UsageError(f"an accelerator has no part {path!r}; it has {', '.join(self.parts)}")
        return total(matches)

    def on(self, device: Board) -> dict[str, int]:
        """Return the amount of each of RESOURCES on a device; one without UltraRAM needs a config with ``ultra=False``."""
        needed = total(part.on(device, path) for path, part in self.parts.items())
        if not device.packs:
            needed += self.in_multipliers.on(device, "datapath.mac")
        return needed.counted()

    def shares(self, device: Board) -> dict[str, float]:
        """Return the amounts as shares of the device's; infinite where the device has none."""
        return {
            name: (need / device.has[name] if device.has[name] else float("inf") * need) if need else 0.0
            for name, need in self.on(device).items()
        }

    def beyond(self, device: Board) -> list[str]:
        """Return the names of RESOURCES of which more is needed than can be placed and routed."""
        return [name for name, need in self.on(device).items() if need > device.usable(name)]


def estimate(config: AcceleratorConfig) -> Estimate:
    """Return the estimate of a configuration, in milliseconds: the accelerator is constructed, not elaborated.

    benchmarks/accelerator/resources.py measures its error.
    """
    accelerator = Accelerator(config)
    return Estimate(config=config, parts=accelerator.resources_by_part, in_multipliers=accelerator.in_multipliers)
