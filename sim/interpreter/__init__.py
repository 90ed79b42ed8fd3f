"""This package runs a program of the accelerator in NumPy, from the program's bytes alone."""

from __future__ import annotations

from edgedec.sim.interpreter.machine import Interpreter

__all__ = ["Interpreter"]
