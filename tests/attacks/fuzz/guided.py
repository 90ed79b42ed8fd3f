"""Run one process of a campaign, guided by coverage: atheris instruments edgedec, and libFuzzer chooses inputs.

Usage: python -m tests.attacks.fuzz.guided READER FOLDER PLACE INPUTS SEED

``FOLDER`` holds ``corpus/``, which grows, ``findings/`` and ``stats.json``. ``PLACE`` is for the files of an input, and
``current``, the input at work, which is read after the process has died. A finding does not end the run: its first few
inputs are kept, and the run continues.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import logging
import os
import pkgutil
import random
import resource
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

__all__ = ["MEMORY_BYTES", "STEP", "main"]

STEP = 250  # inputs between two notes of progress
MEMORY_BYTES = 4 << 30  # address space; an allocation beyond it is a finding
_HANG_SECONDS = 120  # seconds in a library, where Python's own clock cannot interrupt
_MOST_KEPT = 5  # inputs kept of one finding
_BY_LIBFUZZER = 0.25  # share of libFuzzer's mutations; the others know the format


class _Campaign:
    def __init__(self, reader: str, folder: Path, place: Path) -> None:
        targets, self.property = (
            importlib.import_module(f"tests.attacks.fuzz.{name}") for name in ("targets", "property")
        )
        self.target: Any = next(name for name in targets.TARGETS if name.name == reader)
        self.max_bytes: int = targets.MAX_INPUT_BYTES
        self.folder, self.findings = folder, folder / "findings"
        self.findings.mkdir(exist_ok=True)
        self.current, self.place = place / "current", place / "input"
        self.place.mkdir()
        self.counts: Counter[str] = Counter()
        self.found: Counter[str] = Counter()
        self.start = time.monotonic()

    def one_input(self, data: bytes) -> None:
        self.current.write_bytes(data)
        try:
            self.counts["read" if self.property.check(self.target, data, self.place) is None else "refused"] += 1
        except self.property.Finding as finding:
            self._keep(data, finding)
        self.counts["inputs"] += 1
        if self.counts["inputs"] % STEP == 0:
            self.note()

    def _keep(self, data: bytes, finding: Any) -> None:
        self.found[finding.signature] += 1
        if self.found[finding.signature] <= _MOST_KEPT:
            name = f"{len(self.found):03}-{self.found[finding.signature]}-{random.getrandbits(32):08x}"
            (self.findings / name).write_bytes(data)
            (self.findings / f"{name}.txt").write_text(f"{finding}\n", encoding="utf-8", errors="replace")

    def note(self) -> None:
        faulthandler.dump_traceback_later(_HANG_SECONDS, exit=True)
        spent = {"seconds": round(time.monotonic() - self.start, 1), "cpu_seconds": round(time.process_time(), 1)}
        text = json.dumps({**self.counts, **spent, "findings": dict(self.found)})
        (self.folder / "stats.new").write_text(text)
        os.replace(self.folder / "stats.new", self.folder / "stats.json")


def _instrumented(reader: str, folder: Path, place: Path, atheris: Any) -> _Campaign:
    """Import families before they are first used, because later imports are not instrumented."""
    with atheris.instrument_imports(include=["edgedec"]):
        campaign = _Campaign(reader, folder, place)
        families = importlib.import_module("edgedec.families")
        for module in pkgutil.iter_modules(families.__path__):
            importlib.import_module(f"edgedec.families.{module.name}")
    return campaign


def main(arguments: list[str]) -> None:
    (reader, inputs, seed), folder, place = (arguments[0], *arguments[3:]), Path(arguments[1]), Path(arguments[2])
    atheris: Any = importlib.import_module("atheris")
    campaign = _instrumented(reader, folder, place, atheris)
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))

    seeds = list(campaign.target.seeds())
    from_seeds: float = importlib.import_module("tests.attacks.fuzz.unguided").FROM_SEEDS

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if rng.random() < from_seeds:
            data = rng.choice(seeds)
        if rng.random() < _BY_LIBFUZZER:
            return bytes(atheris.Mutate(data, max_size))
        for _ in range(rng.choice((1, 1, 2))):
            data = campaign.target.mutate(rng, data)
        return data[:max_size]

    options = {
        "runs": inputs,
        "seed": seed,
        "max_len": campaign.max_bytes,
        "reload": 0,
        "timeout": 0,  # the property has a clock of its own, with the same signal
        "rss_limit_mb": 0,
        "artifact_prefix": f"{folder}/",
    }
    words = [sys.argv[0], str(folder / "corpus"), *(f"-{key}={value}" for key, value in options.items())]
    campaign.note()
    atheris.Setup(words, campaign.one_input, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
