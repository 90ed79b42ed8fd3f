"""Run one session under a memory budget in a process of its own, and print its plan and its memory as JSON on stdout.

    .venv/bin/python -m benchmarks.memory.budget_child '{"bundle": "...", "drafter": "ngram", "budget_bytes": 25000000}'

The context is filled several times in one session: greedily from a short prompt, by draws from the whole distribution, and
with proposals that are all wrong, in trees as large as the plan allows, in every round. Memory that the first answer leaves
on the heap still counts, so the later answers can only raise the peak. If no plan fits, the exit code is 4.

The output also has the kernel's high-water mark of the resident set (VmHWM, reset after the imports). It includes pages of
libraries. Therefore all mapped files are read in before the reset, and the later growth of libraries is subtracted.
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
from edgedec.memory.heap import trim_heap
from edgedec.memory.meter import mapped_bytes
from edgedec.runtime import kernels as kernels_module
from edgedec.runtime.capabilities import SnapshotState
from edgedec.runtime.decoders.autoregressive import AutoregressiveDecoder
from edgedec.runtime.kernels.recipe import LIBRARY
from edgedec.runtime.kernels.weights.layout_cache import charged_folders
from edgedec.runtime.planning.speculation import SpecConfig
from edgedec.runtime.protocols import I32, Draft, Limits, Outcome, Sparse, TokenTree, TreePolicy
from edgedec.runtime.rounds.adaptive import Adaptive
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.open_run import import_first_start, import_plugins
from edgedec.runtime.session.session import Session
from edgedec.runtime.targets import target_module

__all__ = ["BudgetRun", "HighWater", "WrongDraft", "run"]

PROMPT = "Once upon a time"
_TAIL = 96  # tokens that the second and the third answer add to a prompt that fills the rest
_MADV_POPULATE_READ = 22
_WIDTH = 4  # wrong proposals after a node
_STATUS = Path("/proc/self/status")


@dataclass(frozen=True, kw_only=True)
class BudgetRun:
    """Settings of a run. ``tree_nodes`` and ``draft_max`` are those of ``SpecConfig``; ``ctx_size`` 0: planner's choice."""

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
    """A draft whose proposals are all wrong: ``draft`` does its work, and its proposals are replaced.

    Only the child of the root has to be wrong, because nothing below it can be accepted.

    Parameters:
        never: an id that the target never writes, which replaces the child of the root.
        others: ids that replace the proposals below.
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
    """Always chooses the largest tree, regardless of the acceptance."""

    def size(self, policy: TreePolicy, limits: Limits, past: int) -> Limits:
        return limits

    def observe(self, tree: TokenTree, outcome: Outcome, **seconds: float) -> None:
        return None


class HighWater:
    """The kernel's high-water mark of the resident set since the creation of this object."""

    def __init__(self) -> None:
        _read_in_libraries()
        trim_heap()  # because the model takes what imports have freed first, which would hide as much of its growth
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM becomes VmRSS
        self._began = self._status()

    @staticmethod
    def _status() -> dict[str, int]:
        matches = re.findall(r"^(Vm\w+|Rss\w+):\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
        return {name: 1024 * int(size) for name, size in matches}

    def grown(self, model_bytes: int) -> tuple[int, int]:
        """Return the growth of the mark without libraries, and the growth of the libraries, in bytes.

        ``model_bytes`` is the size of the model's mapped pages now.
        """
        now = self._status()
        libraries = now["RssFile"] - self._began["RssFile"] - model_bytes
        return now["VmHWM"] - self._began["VmRSS"] - libraries, libraries


def _read_in_libraries() -> None:
    """Read in every mapped file, so that no page of a library is added later. Ranges that cannot be read are skipped.

    The kernels' library is mapped for that. Its self-test is left to the session, which is charged for it.
    """
    kernels = Path(kernels_module.__file__).with_name(LIBRARY)
    if kernels.exists():
        ctypes.CDLL(str(kernels))
    libc = ctypes.CDLL(None, use_errno=True)
    for line in Path("/proc/self/maps").read_text().splitlines():
        parts = line.split(maxsplit=5)
        if len(parts) == 6 and parts[5].startswith("/") and "r" in parts[1]:
            start, stop = (int(part, 16) for part in parts[0].split("-"))
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), _MADV_POPULATE_READ)


def _fill(session: Session) -> list[dict[str, Any]]:
    """Fill the context in each way, and return the figures of each answer, with the peak up to its end.

    The last prompt shares no beginning with a text before it, so it is read in passes of the most rows.
    """
    positions, answers = session.run.limits.positions, []
    text = session.encode(PROMPT)

    def answer(name: str, prompt: I32, sampling: SamplingConfig) -> list[int]:
        completion = session.generate(prompt, sampling=sampling, ignore_eos=True)
        answers.append(
            {
                "name": name,
                "stop_reason": completion.stop_reason,
                "tokens": len(completion.tokens),
                "drafted": completion.timings.rounds.drafted,
                "accepted": sum(completion.timings.rounds.accepted),
                "peak_bytes": completion.timings.peak_bytes,
            }
        )
        return completion.tokens

    written = answer("greedy", text, SamplingConfig(temperature=0))
    whole = np.concatenate([text, np.array(written, np.int32)])
    begun = whole[: max(1, positions - _TAIL)]
    answer("drawn", begun, SamplingConfig(temperature=1, top_k=0, top_p=1, min_p=0, seed=1))
    if session.run.spec.drafter != "none":
        _make_wrong(session, whole.tolist())
        answer("rejected", begun, SamplingConfig(temperature=0))
    read = np.ascontiguousarray(begun[::-1])
    answer("read", read, SamplingConfig(temperature=0))
    if isinstance(session.state, SnapshotState):  # snapshots are kept where two prompts part, and at the end of one
        part = len(read) // 2
        answer("parted", np.concatenate([read[:part], np.roll(read[part:], 1)]), SamplingConfig(temperature=0))
    return answers


def _make_wrong(session: Session, text: Sequence[int]) -> None:
    """Make all proposals of the session wrong: they become ids that are not in ``text``, the session's greedy text."""
    decoder, limits = session.decoder, session.run.limits
    assert isinstance(decoder, AutoregressiveDecoder)
    others = [token for token in range(session.bundle.tokens.size) if token not in text][: _WIDTH + 1]
    decoder._draft = WrongDraft(decoder.open_draft(limits), others[0], others[1:])
    decoder._adaptive = _Stubborn(limits.depth, decoder.cost)
    # The dynamic policy grows branches; if the plan has room for a chain alone, the tree is a chain.
    session.run = replace(session.run, spec=replace(session.run.spec, policy="dynamic"))


def _mapped(settings: BudgetRun) -> int:
    """Return the bytes of the models' files that are mapped and resident."""
    paths = [Path(path) for path in (settings.bundle, settings.draft) if path is not None]
    return mapped_bytes(tuple(folder for path in paths for folder in charged_folders(path)))


def run(settings: BudgetRun) -> dict[str, Any]:
    """Open a session, fill its context, and return the plan and the memory that the session was charged.

    Raises:
        BudgetError: no plan fits.
        EdgedecError: see ``Session.open``.
    """
    # Modules that are imported by name are part of the baseline, as in ``Session.open``.
    target_module("cpu")
    import_plugins(settings.spec)
    import_first_start()
    mark = HighWater()
    with Session.open(
        settings.bundle,
        threads=settings.threads,
        ctx_size=settings.ctx_size,
        kv_bits=settings.kv_bits,
        spec=settings.spec,
        budget_bytes=settings.budget_bytes,
    ) as session:
        loaded = session.meter.peak_bytes
        answers = _fill(session)
        high_water, libraries = mark.grown(_mapped(settings))
        high_water -= session.meter.left_out_bytes
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
    settings = BudgetRun(**json.loads(sys.argv[1]))
    try:
        result = run(settings)
    except BudgetError as error:
        # The mapped bytes show that a refused model was not loaded.
        print(json.dumps({"refused": str(error), "mapped_bytes": _mapped(settings)}))
        sys.exit(error.exit_code)
    except EdgedecError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
