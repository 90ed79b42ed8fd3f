"""Test the base class of components: ports at their first use, no warning about mere estimates, and one cost."""

from __future__ import annotations

import gc
import warnings
from typing import Any

import pytest
from amaranth.hdl import Fragment, Module, UnusedElaboratable
from amaranth.lib.wiring import In, Out, connect, flipped

from edgedec.hw.accelerator import Accelerator
from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.fifo import Fifo
from edgedec.hw.blocks.resources import Resources, total
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.datapath import Datapath
from edgedec.hw.matrix.matrix_path import MatrixPath
from edgedec.hw.vector.quantize_path import QuantizePath


class Inverter(CostedComponent):
    """Count how often the ports are requested."""

    def __init__(self, **members: Any) -> None:
        self.asked = 0
        self._members = {"input": In(1), "output": Out(1), **members}
        super().__init__(self._ports)

    def _ports(self) -> dict[str, Any]:
        self.asked += 1
        return self._members

    @property
    def resources(self) -> Resources:
        return Resources(lut=1)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.d.comb += self.output.eq(~self.input)
        return m


def test_ports_are_created_once_and_when_they_are_used() -> None:
    component = Inverter()
    assert component.resources == Resources(lut=1)
    assert component.asked == 0
    first = component.output
    assert component.output is first
    assert set(component.signature.members) == {"input", "output"}
    assert component.asked == 1


def test_the_signature_alone_creates_the_ports_too() -> None:
    component = Inverter()
    assert "input" in component.signature.members
    assert component.input.name == "input"


def test_a_stream_connects_before_a_port_was_used() -> None:
    m, source, sink = Module(), Fifo(shape=8, depth=4), Fifo(shape=8, depth=4)
    m.submodules += [source, sink]
    connect(m, source.output, sink.input)
    connect(m, flipped(sink.output.signature.flip().create()), Fifo(shape=8, depth=4).input)


def test_an_unknown_attribute_is_an_attribute_error() -> None:
    component = Inverter()
    with pytest.raises(AttributeError, match="'Inverter' object has no attribute 'outptu'"):
        _ = component.outptu
    assert not hasattr(component, "_private")
    assert component.input.name == "input"


def test_a_fault_inside_of_an_estimate_keeps_its_own_message() -> None:
    class Faulty(Inverter):
        @property
        def resources(self) -> Resources:
            return total(self.prats)

    with pytest.raises(AttributeError, match="'Faulty' object has no attribute 'prats'"):
        _ = Faulty().resources


def test_a_port_must_not_have_the_name_of_an_attribute() -> None:
    with pytest.raises(NameError, match="signature member 'resources'"):
        _ = Inverter(resources=In(1)).input


def test_components_without_parts_have_no_parts() -> None:
    with pytest.raises(NotImplementedError, match="Inverter gives its resources in one sum"):
        _ = Inverter().resources_by_part


def unused(make: Any) -> list[str]:
    """Return Amaranth's warnings about what ``make`` creates and drops, not those of components from earlier tests."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnusedElaboratable)
        gc.collect()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UnusedElaboratable)
        make()
        gc.collect()
    return [str(warning.message) for warning in caught if warning.category is UnusedElaboratable]


@pytest.mark.rtl
def test_only_a_component_with_ports_must_be_elaborated() -> None:
    assert unused(lambda: Inverter().resources) == []
    assert unused(lambda: Accelerator(AcceleratorConfig(slots=1)).resources) == []
    Fragment.get(Inverter(), None)  # Amaranth warns in processes that have elaborated something
    (message,) = unused(lambda: Inverter().output)
    assert message.endswith("created but never used")


@pytest.mark.parametrize(
    "component",
    [
        Accelerator(AcceleratorConfig()),
        Datapath(AcceleratorConfig(scaling=True)),
        MatrixPath(beat_bytes=16, slots=2, tile_words=8, depth=4, int8=False),
        QuantizePath(beat_bytes=16, slots=2, depth=64),
    ],
    ids=lambda component: type(component).__name__,
)
def test_the_cost_is_the_sum_of_the_parts(component: CostedComponent) -> None:
    assert component.resources == total(component.resources_by_part.values())
    assert all(part != Resources() for part in component.resources_by_part.values())
