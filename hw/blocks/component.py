"""The base class of the components whose cost is known before they are elaborated."""

from collections.abc import Callable, Mapping
from typing import Any

from amaranth.lib.wiring import Component, Signature

from edgedec.hw.blocks.resources import Resources, total

__all__ = ["CostedComponent"]


class CostedComponent(Component):
    """A component with an estimate of its cost, ``resources``, which is derived from its parts.

    The ports are created when one of them, or the signature, is first used. Creating the signals of wide ports takes
    nearly all the time of a construction, and an estimate needs none of them: a whole accelerator is constructed and
    estimated in milliseconds.

    Parameters:
        ports: function that returns the members of the signature; called at most once.
    """

    def __init__(self, ports: Callable[[], Mapping[str, Any]]) -> None:
        self._create_ports: Callable[[], Mapping[str, Any]] | None = ports
        self._MustUse__silence = True  # no warning of Amaranth: the component may exist only for its estimate

    @property
    def resources(self) -> Resources:
        """Estimate of the cost of this component with all its parts."""
        return total(self.resources_by_part.values())

    @property
    def resources_by_part(self) -> dict[str, Resources]:
        """The same estimate by submodule; "glue" is the logic that joins them. Not every component has named parts."""
        raise NotImplementedError(f"{type(self).__name__} gives its resources in one sum")

    @property
    def signature(self) -> Signature:
        self._ensure_ports()
        return super().signature

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_"):
            self._ensure_ports()
        return object.__getattribute__(self, name)  # a property that failed fails again, with its own message

    def _ensure_ports(self) -> None:
        """Create the ports, unless they exist."""
        create = self.__dict__.get("_create_ports")
        if create is None:
            return
        self._create_ports = None
        self._MustUse__silence = False
        super().__init__(dict(create()))
