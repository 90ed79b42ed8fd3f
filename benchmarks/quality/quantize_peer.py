"""Convert a checkpoint to TQ2_0 with llama.cpp: its converter writes a float16 GGUF, and ``llama-quantize`` converts it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from benchmarks.peers.llama_cpp import LlamaCpp
from benchmarks.support.process_tree import TreeRun, run_tree
from edgedec.errors import ToolError
from edgedec.host.install_hint import pip_install

__all__ = ["PeerRun", "check_converter", "run_peer"]

_NEEDED = ("torch", "transformers", "sentencepiece")
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


@dataclass(frozen=True, kw_only=True)
class PeerRun:
    """Figures of both steps."""

    convert: TreeRun
    quantize: TreeRun

    @property
    def seconds(self) -> float:
        return self.convert.seconds + self.quantize.seconds

    @property
    def cpu_seconds(self) -> float:
        return self.convert.cpu_seconds + self.quantize.cpu_seconds

    @property
    def peak_bytes(self) -> int:
        return max(self.convert.peak_bytes, self.quantize.peak_bytes)


def check_converter(llama: LlamaCpp) -> Path:
    """Return the path of the converter's script.

    Raises:
        ToolError: the script, or a package that it needs, is missing.
    """
    script = llama.source / "convert_hf_to_gguf.py"
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing or not script.exists():
        needs = f"the packages {', '.join(missing)}" if missing else str(script)
        raise ToolError(
            f"llama.cpp's converter needs {needs}; run: {pip_install(*_NEEDED)}, or measure edgedec alone with --no-peer"
        )
    return script


def run_peer(llama: LlamaCpp, checkpoint: Path, scratch: Path, output: Path) -> PeerRun:
    """Write ``output``; the float16 GGUF between the two steps is deleted.

    Raises:
        ToolError: the converter cannot run.
        DeviceError: a step failed.
    """
    script, full = check_converter(llama), scratch / "float16.gguf"
    try:
        converter = [sys.executable, str(script), str(checkpoint), "--outtype", "f16", "--outfile", str(full)]
        convert = run_tree(converter, environment=_OFFLINE)
        quantize = run_tree([str(llama.program("llama-quantize")), str(full), str(output), "TQ2_0"])
    finally:
        full.unlink(missing_ok=True)
    return PeerRun(convert=convert, quantize=quantize)
