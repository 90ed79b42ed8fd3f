"""A netlist of ECP5 cells, as yosys makes it of a system, in the place of the system's gateware in a simulation.

The netlist is not compiled: gates.hpp runs it cell by cell, for of what CXXRTL writes of one a compiler has for an hour. It
has the ports of a design of CXXRTL, so that the same harness drives both: see ``edgedec.sim.boards.uart_library.build``.
"""

from __future__ import annotations

from edgedec.sim.netlist.design import write_design

__all__ = ["write_design"]
