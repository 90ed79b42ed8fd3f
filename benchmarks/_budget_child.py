"""One session under a memory budget, in a process of its own: what it was planned and what it was charged. JSON on stdout.

    .venv/bin/python benchmarks/_budget_child.py '{"bundle": "...", "drafter": "ngram", "budget_bytes": 25000000}'

The context is filled three times in one session: greedily from a short prompt, by draws from the whole distribution, and
with guesses all of which are wrong, in trees as large as the plan allows and without a pause. What the first leaves on the
heap is still the session's own, so the later ones can only show a higher peak. A plan that does not fit ends with exit
code 4.

Beside the meter stands the kernel's own high-water mark of the resident set (VmHWM, reset after the imports). It counts
pages of libraries as well. So all of what is mapped is read in before, and what libraries grew by later is taken off.
"""

from __future__ import annotations

import ctypes
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from edgedec.errors import BudgetError, EdgedecError
from edgedec.memory import MemoryMeter
from edgedec.runtime.decoders.adaptive import Adaptive
from edgedec.runtime.kernels.layout_cache import charged_folders
from edgedec.runtime.protocols import I32, Draft, Outcome, Sparse, TokenTree
from edgedec.runtime.sampling import SamplingConfig
from edgedec.runtime.session import Session
from edgedec.runtime.speculation import SpecConfig
from edgedec.runtime.targets import target_module

__all__ = ["HighWater", "Run", "WrongDraft", "run"]

PROMPT = "Once upon a time"
_TAIL = 96  # tokens that the second and the third answer add to a prompt that fills the rest
_MADV_POPULATE_READ = 22
_WIDTH = 4  # wrong guesses after a node
_STATUS = Path("/proc/self/status")


@dataclass(frozen=True, kw_only=True)
class Run:
    """What to run. ``tree_nodes``, ``draft_max``, ``policy``: as ``SpecConfig``; ``ctx_size`` 0: the planner chooses."""

    bundle: str
    drafter: str = "none"
    draft: str | None = None
    ctx_size: int = 0
    kv_bits: int | None = None
    budget_bytes: int | None = None
    threads: int = 1
    draft_max: int = 8
    tree_nodes: int = 0

    @property
    def spec(self) -> SpecConfig:
        return SpecConfig(
            drafter=self.drafter,
            draft=None if self.draft is None else Path(self.draft),
            draft_max=self.draft_max,
            tree_nodes=self.tree_nodes,
        )


class WrongDraft:
    """A draft whose every guess is wrong: what ``draft`` does is done, and ``never`` is guessed instead.

    Only the root's child has to be wrong: nothing below it can be accepted.

    Parameters:
        never: an id that the target never writes.
        others: ids for the places below.
    """

    def __init__(self, draft: Draft, never: int, others: Sequence[int]) -> None:
        self._draft = draft
        self._first = Sparse(ids=np.array([never], np.int32), probs=np.ones(1, np.float32))
        chances = 0.5 ** np.arange(1, len(others) + 1)
        self._below = Sparse(ids=np.array(others, np.int32), probs=(chances / chances.sum()).astype(np.float32))

    def expand(self, text: I32, tree: TokenTree, nodes: I32) -> list[Sparse]:
        self._draft.expand(text, tree, nodes)
        return [self._below if node else self._first for node in nodes.tolist()]

    def observe(self, tree: TokenTree, outcome: Outcome) -> None:
        self._draft.observe(tree, outcome)


class _Stubborn(Adaptive):
    """Guesses as deep as it may, whatever came of it."""

    def depth(self, past: int) -> int:
        return len(self.accept)

    def observe(self, tree: TokenTree, outcome: Outcome, **seconds: float) -> None:
        return None


class HighWater:
    """The kernel's high-water mark of the resident set from now on."""

    def __init__(self) -> None:
        _read_in_libraries()
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM becomes VmRSS
        self._began = self._status()

    @staticmethod
    def _status() -> dict[str, int]:
        found = re.findall(r"^(Vm\w+|Rss\w+):\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
        return {name: 1024 * int(size) for name, size in found}

    def grown(self, model_bytes: int) -> tuple[int, int]:
        """Growth of the mark without libraries, and of the libraries. ``model_bytes``: mapped pages of the model now."""
        now = self._status()
        libraries = now["RssFile"] - self._began["RssFile"] - model_bytes
        return now["VmHWM"] - self._began["VmRSS"] - libraries, libraries


def _read_in_libraries() -> None:
    """Fault in every mapped file, so that no page of a library comes later. Ranges that cannot be read are passed over."""
    libc = ctypes.CDLL(None, use_errno=True)
    for line in Path("/proc/self/maps").read_text().splitlines():
        parts = line.split(maxsplit=5)
        if len(parts) == 6 and parts[5].startswith("/") and "r" in parts[1]:
            start, stop = (int(part, 16) for part in parts[0].split("-"))
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), _MADV_POPULATE_READ)


def _fill(session: Session) -> list[dict[str, Any]]:
    """Fill the context three times; what each did, with the peak up to its end."""
    positions, found = session.run.limits.positions, []
    text = session.encode(PROMPT)

    def answer(name: str, prompt: I32, sampling: SamplingConfig) -> list[int]:
        done = session.generate(prompt, sampling=sampling, ignore_eos=True)
        found.append(
            {
                "name": name,
                "stop_reason": done.stop_reason,
                "tokens": len(done.tokens),
                "drafted": done.timings.rounds.drafted,
                "accepted": sum(done.timings.rounds.accepted),
                "peak_bytes": done.timings.peak_bytes,
            }
        )
        return done.tokens

    written = answer("greedy", text, SamplingConfig(temperature=0))
    whole = np.concatenate([text, np.array(written, np.int32)])
    begun = whole[: max(1, positions - _TAIL)]
    answer("drawn", begun, SamplingConfig(temperature=1, top_k=0, top_p=1, min_p=0, seed=1))
    if session.run.spec.drafter != "none":
        _make_wrong(session, whole.tolist())
        answer("rejected", begun, SamplingConfig(temperature=0))
    return found


def _make_wrong(session: Session, text: Sequence[int]) -> None:
    """``text``: what the session writes greedily; an id that is not in it is a wrong guess anywhere."""
    decoder, limits = session.decoder, session.run.limits
    others = [token for token in range(session.bundle.tokens.size) if token not in text][: _WIDTH + 1]
    decoder._draft = WrongDraft(decoder.open_draft(limits), others[0], others[1:])
    decoder._adaptive = _Stubborn(limits.depth, decoder.cost)
    # With branches; where the plan has room for a chain alone, it still is one.
    session.run = replace(session.run, spec=replace(session.run.spec, policy="dynamic"))


def _mapped(wanted: Run) -> int:
    """Bytes of the models' files that are mapped and resident."""
    paths = [Path(path) for path in (wanted.bundle, wanted.draft) if path is not None]
    return MemoryMeter(tuple(folder for path in paths for folder in charged_folders(path))).charged_bytes()


def run(wanted: Run) -> dict[str, Any]:
    """Open, fill, and say what was planned and charged.

    Raises:
        BudgetError: no plan fits.
        EdgedecError: as ``Session.open``.
    """
    target_module("cpu")  # imports ONNX Runtime: as in ``Session.open``, part of the baseline
    mark = HighWater()
    with Session.open(
        wanted.bundle,
        threads=wanted.threads,
        ctx_size=wanted.ctx_size,
        kv_bits=wanted.kv_bits,
        spec=wanted.spec,
        budget_bytes=wanted.budget_bytes,
    ) as session:
        loaded = session.meter.peak_bytes
        answers = _fill(session)
        high_water, libraries = mark.grown(_mapped(wanted))
        return {
            "available": session.meter.available,
            "plan": asdict(session.run.plan),
            "loaded_bytes": loaded,
            "peak_bytes": session.meter.peak_bytes,
            "high_water_bytes": high_water,
            "library_bytes": libraries,
            "answers": answers,
        }


def main() -> None:
    wanted = Run(**json.loads(sys.argv[1]))
    try:
        found = run(wanted)
    except BudgetError as error:
        # What was refused must not have been loaded.
        print(json.dumps({"refused": str(error), "mapped_bytes": _mapped(wanted)}))
        sys.exit(error.exit_code)
    except EdgedecError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
