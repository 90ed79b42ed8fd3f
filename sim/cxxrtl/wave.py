"""Write a waveform of some cycles of a simulation, as VCD or FST, with a saved view of GTKWave for each protocol."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from edgedec.bundle.atomic import new_file
from edgedec.errors import ToolError, UsageError
from edgedec.sim.cxxrtl.simulation import Simulation

__all__ = ["VIEWS", "Wave", "read_names"]

_MOST_CYCLES = 100_000  # cycles of a waveform; a small accelerator has some kilobytes in each
_CONVERTER = "vcd2fst"
_VARIABLE = re.compile(r"\$var \w+ (\d+) \S+ (\S+)(?: \[\S+\])? \$end")
_SCOPE = re.compile(r"\$scope \w+ (\S+) \$end")
_BINARY, _HEXADECIMAL = "@28", "@22"  # flags of a trace in GTKWave's saved views

# The signals of each view, by their names. Queues and streams have a payload with valid and ready.
VIEWS: Mapping[str, re.Pattern[str]] = {
    "axi-read": re.compile(r"read\d+__(ar|r)[a-z]+"),
    "axi-write": re.compile(r"write__(aw|w|b)[a-z]+"),
    "streams": re.compile(r".+__(valid|ready|payload\w*)"),
    "registers": re.compile(r"registers__[a-z]+|interrupt"),
}


@dataclass(frozen=True, kw_only=True)
class Wave:
    """A waveform to be written.

    Members:
        path: the file, whose suffix is .vcd or .fst; views are written beside it.
        first_cycle, end_cycle: cycles since the simulation began; the second one is not in the file.

    Raises:
        UsageError: the suffix is another, or there are no cycles, or too many.
        ToolError: the program that writes FST is missing.
    """

    path: Path
    first_cycle: int
    end_cycle: int

    def __post_init__(self) -> None:
        if self.path.suffix not in (".vcd", ".fst"):
            raise UsageError(f"--wave {self.path}: the suffix must be .vcd or .fst, not {self.path.suffix or 'none'}")
        if self.first_cycle < 0:
            raise UsageError(f"--from must be 0 or more, not {self.first_cycle}")
        if self.end_cycle <= self.first_cycle:
            raise UsageError(f"--to {self.end_cycle} must be greater than --from {self.first_cycle}")
        if self.end_cycle - self.first_cycle > _MOST_CYCLES:
            raise UsageError(
                f"--from {self.first_cycle} --to {self.end_cycle} are {self.end_cycle - self.first_cycle} cycles, and a "
                f"waveform has at most {_MOST_CYCLES}; give a smaller range"
            )
        if self.path.suffix == ".fst" and shutil.which(_CONVERTER) is None:
            raise ToolError(
                f"--wave {self.path}: FST is written by {_CONVERTER} of GTKWave, which is missing; install it "
                f"(apt-get install gtkwave), or name a file that ends in .vcd"
            )

    @contextmanager
    def of(self, simulation: Simulation) -> Iterator[None]:
        """Write the cycles that the simulation runs in the body, and the views, if the body succeeds.

        Raises:
            UsageError: the simulation ran none of the cycles; or the file's folder does not exist.
            ToolError: the file cannot be written, or converted.
        """
        with new_file(self.path) as partial:
            vcd = partial if self.path.suffix == ".vcd" else partial.with_suffix(".vcd")
            try:
                simulation.write_wave(vcd, first_cycle=self.first_cycle, cycles=self.end_cycle - self.first_cycle)
                yield
                if not simulation.end_wave():
                    raise UsageError(
                        f"--from {self.first_cycle}: the run ended at cycle {simulation.cycles}; give a smaller number"
                    )
                names = read_names(vcd)
                if vcd != partial:
                    _convert(vcd, partial)
            finally:
                if vcd != partial:
                    vcd.unlink(missing_ok=True)
        for view, path in self.views.items():
            with new_file(path) as partial:
                partial.write_text(self._view(names, VIEWS[view]), "utf-8")

    @property
    def views(self) -> Mapping[str, Path]:
        """The saved views by their names."""
        return {view: self.path.with_suffix(f".{view}.gtkw") for view in VIEWS}

    def _view(self, names: Mapping[str, int], shown: re.Pattern[str]) -> str:
        lines = [f'[dumpfile] "{self.path.resolve()}"', "[timestart] 0"]
        for name, bits in names.items():
            if shown.fullmatch(name):
                lines += [_BINARY, name] if bits == 1 else [_HEXADECIMAL, f"{name}[{bits - 1}:0]"]
        return "\n".join([*lines, ""])


def _convert(vcd: Path, fst: Path) -> None:
    try:
        done = subprocess.run([_CONVERTER, str(vcd), str(fst)], capture_output=True, text=True, check=False)
    except OSError as error:
        raise ToolError(f"{_CONVERTER} cannot be run: {error}; install GTKWave again, or name a .vcd file") from error
    if done.returncode:
        raise ToolError(f"{_CONVERTER} failed: {done.stderr.strip() or done.returncode}; name a .vcd file")


def read_names(path: Path) -> dict[str, int]:
    """Return the bits of each signal in a VCD file, by its name with the scopes before it."""
    found: dict[str, int] = {}
    scopes: list[str] = []
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if scope := _SCOPE.match(line):
                scopes.append(scope[1])
            elif line.startswith("$upscope"):
                scopes.pop()
            elif variable := _VARIABLE.match(line):
                found[".".join([*scopes, variable[2]])] = int(variable[1])
            elif line.startswith("$enddefinitions"):
                break
    return found
