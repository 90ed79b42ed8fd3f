"""The environment variables that edgedec reads, each with its name and meaning.

Options of commands have variables too, ``EDGEDEC_<COMMAND>_<OPTION>``, whose names are derived from the option; they are not
listed here. Any other variable that begins with ``EDGEDEC_`` is refused by the command line.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from edgedec.errors import UsageError

__all__ = [
    "CHIPDB",
    "DEBUG",
    "FUSED",
    "GPU",
    "HUGE_PAGES",
    "KERNEL",
    "LOOP",
    "ORT_TELEMETRY",
    "PREFIX",
    "PRJXRAY_DB",
    "SHARED_DATA",
    "VARIABLES",
    "WRITE_GOLDEN",
    "Variable",
]

PREFIX = "EDGEDEC_"


@dataclass(frozen=True, kw_only=True)
class Variable:
    """An environment variable that edgedec reads.

    Members:
        name: full name, which begins with ``PREFIX``.
        values: description of the possible values.
        meaning: effect of the variable, as one sentence.
    """

    name: str
    values: str
    meaning: str

    def value(self) -> str | None:
        """Return the value of the variable; None if it is not set or empty."""
        return os.environ.get(self.name) or None

    def is_on(self) -> bool:
        """Return True if a switch is on.

        Raises:
            UsageError: the value is neither 0 nor 1.
        """
        value = self.value()
        if value not in (None, "0", "1"):
            raise UsageError(f"environment variable {self.name} must be 1 or 0, not {value!r}")
        return value == "1"


CHIPDB = Variable(
    name="EDGEDEC_CHIPDB",
    values="a file, or a folder",
    meaning="nextpnr-xilinx's database of the device, for build-bitstream --flow openxc7; without it, CHIPDB counts.",
)
DEBUG = Variable(
    name="EDGEDEC_DEBUG",
    values="1 or 0",
    meaning="After an unexpected error, a command prints Python's traceback.",
)
FUSED = Variable(
    name="EDGEDEC_FUSED",
    values="1 or 0",
    meaning="With 0, each operation on the CPU is a node of its own; the results are the same, and passes take longer.",
)
GPU = Variable(
    name="EDGEDEC_GPU",
    values="a part of an adapter's name",
    meaning="The device gpu uses the first adapter whose name contains this; without it, a real GPU before a software one.",
)
HUGE_PAGES = Variable(
    name="EDGEDEC_HUGE_PAGES",
    values="1 or 0",
    meaning="With 0, large weights are mapped from their files instead of read into huge pages.",
)
KERNEL = Variable(
    name="EDGEDEC_KERNEL",
    values="portable, or the name of a code path",
    meaning="The CPU kernels use this code path; portable runs models without the kernels.",
)
LOOP = Variable(
    name="EDGEDEC_LOOP",
    values="compiled or python",
    meaning="Rounds run in Python with python; with compiled, a library that does not work is an error.",
)
ORT_TELEMETRY = Variable(
    name="EDGEDEC_ORT_TELEMETRY",
    values="1 or 0",
    meaning="ONNX Runtime decides by itself whether it records its use and sends the records to its vendor.",
)
PRJXRAY_DB = Variable(
    name="EDGEDEC_PRJXRAY_DB",
    values="a folder",
    meaning="prjxray's database, for build-bitstream --flow openxc7; without it, PRJXRAY_DB_DIR counts.",
)
SHARED_DATA = Variable(
    name="EDGEDEC_SHARED_DATA",
    values="a folder",
    meaning="Tests and benchmarks of a checkout take trained models, prompts and texts from it.",
)
WRITE_GOLDEN = Variable(
    name="EDGEDEC_WRITE_GOLDEN",
    values="1 or 0",
    meaning="Tests of a checkout rewrite their expected files.",
)
VARIABLES = (CHIPDB, DEBUG, FUSED, GPU, HUGE_PAGES, KERNEL, LOOP, ORT_TELEMETRY, PRJXRAY_DB, SHARED_DATA, WRITE_GOLDEN)
