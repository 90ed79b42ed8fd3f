"""Suite ``tokens``: run whole tokens of a model, with prefill, decoding, and a tree of which a part is committed."""

from __future__ import annotations

from pathlib import Path

from edgedec.bundle.bundle import Bundle
from edgedec.hw.compiler.choose import small_config
from edgedec.progress import Progress
from edgedec.reference.integer_profile.calibrate import calibrate
from edgedec.reference.integer_profile.model import prepare
from edgedec.sim.verify.suite import SuiteReport
from edgedec.sim.verify.token_run import TokenRun

__all__ = ["run"]

_PROMPT = tuple(range(100, 116))
_QUICK_PROMPT, _QUICK_TOKENS, _TOKENS = 3, 2, 32


def run(*, model: Path, quick: bool, progress: Progress) -> SuiteReport:
    """Run the suite.

    Raises:
        DeviceError: an integer differs from the reference.
    """
    bundle = Bundle.open(model)
    integers = prepare(bundle, calibrate(bundle))
    runner = TokenRun(integers, small_config(integers), progress=progress)
    prompt = _PROMPT[:_QUICK_PROMPT] if quick else _PROMPT
    report = runner.run(prompt, _QUICK_TOKENS if quick else _TOKENS, progress=progress)
    runner.tree([5, 6], [-1, -1], [1])  # two guesses for one position; the commit must move the second one
    total = report.total(report.decode)
    return SuiteReport(
        what="whole tokens of the model: RTL = interpreter of the program = integer reference",
        compared=dict(runner.verified.compared),
        figures={
            "decoded tokens": len(report.tokens),
            "cycles per decoded token": total["cycles"] // len(report.decode),
        },
        left_out=f"{len(_PROMPT) - _QUICK_PROMPT} of the prompt's tokens, {_TOKENS - _QUICK_TOKENS} decoded ones"
        if quick
        else "",
    )
