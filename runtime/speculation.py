"""What to speculate with: the names a user gives, made into the plug-ins of one run."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgedec.bundle import Bundle
from edgedec.errors import UsageError
from edgedec.plugins import load, names
from edgedec.runtime.protocols import Drafter, TreePolicy, Verifier
from edgedec.spelling import must_be_one_of

__all__ = ["DRAFTERS", "POLICIES", "SpecConfig", "create_drafter", "create_policy", "create_verifier"]

DRAFTERS, POLICIES, VERIFIERS = "edgedec.runtime.drafters", "edgedec.runtime.trees", "edgedec.runtime.verifiers"


@dataclass(frozen=True, kw_only=True)
class SpecConfig:
    """Members:
        drafter: the name of a file of runtime/drafters (``--spec-type``), or a ``Drafter`` of one's own.
        policy: a file of runtime/trees (``--spec-tree``).
        draft: the bundle of the drafter ``model`` (``-md``), as ``bundle_folder`` takes it.
        draft_max: guesses on a path at most (``--draft-max``).
        tree_nodes: nodes of a tree at most, its root among them; 0: ``draft_max`` + 1.

    Raises:
        UsageError: an unknown name (the message lists the known ones), a drafter that lacks a member of the protocol, or a
            number out of range.
    """

    drafter: str | Drafter = "none"
    policy: str = "chain"
    draft: str | Path | None = None
    draft_max: int = 8
    tree_nodes: int = 0

    def __post_init__(self) -> None:
        drafters = names(DRAFTERS)
        if isinstance(self.drafter, str) and self.drafter not in drafters:
            raise UsageError(must_be_one_of("--spec-type", self.drafter, drafters))
        missing = [name for name in ("taps", "footprint", "open") if not hasattr(self.drafter, name)]
        if missing and not isinstance(self.drafter, str):
            raise UsageError(
                f"the drafter {self.drafter!r} has no {' and no '.join(missing)}; a drafter is a name, one of "
                f"{', '.join(drafters)}, or an object with all members of edgedec.runtime.protocols.Drafter"
            )
        policies = names(POLICIES)
        if self.policy not in policies:
            raise UsageError(must_be_one_of("--spec-tree", self.policy, policies))
        if not 1 <= self.draft_max <= 63:
            raise UsageError(f"--draft-max must be 1 to 63, not {self.draft_max}")
        if not (self.tree_nodes == 0 or 2 <= self.tree_nodes <= 64):
            raise UsageError(f"--tree-nodes must be 2 to 64, or 0, not {self.tree_nodes}")
        if self.draft is not None and self.drafter not in ("model", "auto"):
            raise UsageError(f"-md is for --spec-type model or auto, not {self.drafter_name}")
        if self.drafter == "model" and self.draft is None:
            raise UsageError("--spec-type model needs a draft: give its bundle with -md")

    @property
    def drafter_name(self) -> str:
        """The name that plans and figures give the drafter: its class's for a drafter of one's own."""
        return self.drafter if isinstance(self.drafter, str) else type(self.drafter).__name__

    @property
    def nodes(self) -> int:
        """Nodes of the largest tree."""
        return 1 if self.drafter == "none" else self.tree_nodes or self.draft_max + 1


def create_drafter(name: str | Drafter, draft: Bundle | None, *, device: str = "cpu", threads: int = 0) -> Drafter:
    """Return the drafter of a name; a drafter that is made already is returned as it is.

    Raises:
        UsageError: no drafter has this name, or it needs a draft model and got none.
    """
    if not isinstance(name, str):
        return name
    create = load(DRAFTERS, name).create
    # Those that take a model say so by their parameters; the others are made from nothing.
    if "draft" in inspect.signature(create).parameters:
        made: Drafter = create(draft, device=device, threads=threads)
        return made
    plain: Drafter = create()
    return plain


def create_policy(name: str, rng: np.random.Generator | None = None) -> TreePolicy:
    """``rng``: children are drawn from the draft, as ``rejection`` wants them; without it the likeliest are taken."""
    made: TreePolicy = load(POLICIES, name).create(rng)
    return made


def create_verifier(temperature: float) -> Verifier:
    """The one that accepts most and leaves the text as the target alone would write it."""
    made: Verifier = load(VERIFIERS, "greedy" if temperature == 0 else "rejection").create()
    return made
