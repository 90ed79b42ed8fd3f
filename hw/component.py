"""The base class of the components whose cost is known before they are elaborated."""

from collections.abc import Callable, Mapping
from typing import Any

from amaranth.lib.wiring import Component, Signature

from edgedec.hw.resources import Resources, total

__all__ = ["CostedComponent"]


class CostedComponent(Component):
    """A component with an estimate of its cost, ``resources``, that comes from the parts that it is built from.

    The ports are created when one of them, or the signature, is first used. The signals of wide ports take Amaranth
    nearly all the time of a construction, and an estimate needs none of them: a whole accelerator is constructed and
    estimated in milliseconds.

    Parameters:
        ports: returns the members of the signature; called once at most.
    """

    def __init__(self, ports: Callable[[], Mapping[str, Any]]) -> None:
        self._create_ports: Callable[[], Mapping[str, Any]] | None = ports
        self._MustUse__silence = True  # Amaranth's warning: a component without ports was made for its estimate

    @property
    def resources(self) -> Resources:
        """Estimate of the cost of this component and all that is in it."""
        return total(self.resources_by_part.values())

    @property
    def resources_by_part(self) -> dict[str, Resources]:
        """The same by submodule; "glue" is the logic that joins them. Components without named parts have none."""
        raise NotImplementedError(f"{type(self).__name__} gives its resources in one sum")

    @property
    def signature(self) -> Signature:
        self._ensure_ports()
        return super().signature

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and self._ensure_ports():
            return getattr(self, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _ensure_ports(self) -> bool:
        """Create the ports, unless they exist. Returns whether they were created."""
        create = self.__dict__.get("_create_ports")
        if create is None:
            return False
        self._create_ports = None
        self._MustUse__silence = False
        super().__init__(dict(create()))
        return True
