"""Netlists of ECP5 cells that replace a system's gateware in a simulation.

A netlist is not compiled: gates.hpp runs it cell by cell, because the C++ that CXXRTL writes for a netlist takes an hour to
compile. It has the ports of a CXXRTL design, so that the same harness drives both: see
``edgedec.sim.boards.uart_library.build``.
"""

from __future__ import annotations

from edgedec.sim.netlist.design import write_design

__all__ = ["write_design"]
