"""The settings of speculative decoding, and the plug-ins that they name."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from edgedec.bundle.bundle import Bundle
from edgedec.errors import UsageError
from edgedec.host.spelling import must_be_one_of
from edgedec.plugins import load, names
from edgedec.runtime import trees
from edgedec.runtime.decoders import DEFAULT
from edgedec.runtime.decoders._plugin import ChosenDecoder, choose_decoder
from edgedec.runtime.model_graph import last_layer
from edgedec.runtime.protocols import Drafter, TreePolicy, Verifier
from edgedec.runtime.sampling.target_top import graph_taps
from edgedec.runtime.verifiers._traits import Traits

__all__ = [
    "DRAFTERS",
    "POLICIES",
    "VERIFIERS",
    "SpecConfig",
    "create_drafter",
    "create_policy",
    "create_verifier",
    "run_taps",
    "verifier_traits",
]

DRAFTERS, POLICIES, VERIFIERS = "edgedec.runtime.drafters", "edgedec.runtime.trees", "edgedec.runtime.verifiers"

MOST_NODES = 64  # nodes of the largest tree


@dataclass(frozen=True, kw_only=True)
class SpecConfig:
    """The settings of speculative decoding.

    Members:
        drafter: name of a file of runtime/drafters (``--spec-type``), or a ``Drafter``.
        policy: name of a file of runtime/trees (``--spec-tree``). Empty: that of ``default_tree`` there, which the plan of a
            run has.
        draft: the draft model's bundle (``-md``), as a path or a name that ``bundle_folder`` accepts, or a tuple of several,
            among which the drafter ``auto`` chooses; the first ones are preferred if memory has no room for all.
        draft_max: maximum number of guesses on a path, 1 to 63 (``--draft-max``).
        tree_nodes: maximum number of nodes of a tree, 2 to 64, including its root; 0: ``draft_max`` + 1.
        verifier: name of a file of runtime/verifiers (``--verifier``); at temperature 0 ``greedy`` is used in its place.
        decoder: name of a file of runtime/decoders (``--decoder``), with its options after a colon:
            "NAME:OPTION=VALUE,OPTION=VALUE".
        samples: number of texts of one prompt that the session will write, at least 1. ``auto`` considers ``stand`` if
            there are several. No text depends on it.

    Raises:
        UsageError: a name is unknown (the message lists the known names), a drafter lacks a member of the protocol, a
            number is out of range, ``draft`` does not fit the drafter, the drafter does not fit the decoder, or the policy's
            trees do not fit the verifier.
    """

    drafter: str | Drafter = "none"
    policy: str = ""
    draft: str | Path | tuple[str | Path, ...] | None = None
    draft_max: int = 8
    tree_nodes: int = 0
    verifier: str = "match"
    decoder: str = DEFAULT
    samples: int = 1

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
        for package, option, name in (
            (POLICIES, "--spec-tree", self.policy or trees.DEFAULT),
            (VERIFIERS, "--verifier", self.verifier),
        ):
            if name not in names(package):
                raise UsageError(must_be_one_of(option, name, names(package)))
        verifies = verifier_traits(self.verifier)
        policy = self.policy or trees.DEFAULTS[verifies.lossless]
        if self.drafter != "none" and verifies.policies and policy not in verifies.policies:
            raise UsageError(
                f"--verifier {self.verifier} needs --spec-tree {' or '.join(verifies.policies)}, not {policy}: "
                f"{verifies.reason}"
            )
        self._check_decoder()
        if self.samples < 1:
            raise UsageError(f"samples must be at least 1, not {self.samples}")
        if not 1 <= self.draft_max <= 63:
            raise UsageError(f"--draft-max must be 1 to 63, not {self.draft_max}")
        if not (self.tree_nodes == 0 or 2 <= self.tree_nodes <= MOST_NODES):
            raise UsageError(
                f"--tree-nodes must be 2 to {MOST_NODES}, or 0, not {self.tree_nodes}: a tree is one pass, "
                f"and a pass has at most {MOST_NODES} rows"
            )
        self._check_drafts()

    def _check_drafts(self) -> None:
        drafts = self.drafts
        object.__setattr__(self, "draft", drafts if len(drafts) > 1 else drafts[0] if drafts else None)
        if drafts and self.drafter not in ("model", "auto"):
            raise UsageError(f"-md is for --spec-type model or auto, not {self.drafter_name}")
        option = "--spec-type model" if self.writes.traits.guesses else f"--decoder {self.writes.name}"
        if self.drafter == "model" and not drafts:
            raise UsageError(f"{option} needs a draft model: give its bundle with -md")
        if self.drafter == "model" and len(drafts) > 1:
            raise UsageError(
                f"{option} takes one draft model, not {len(drafts)} ({', '.join(map(str, drafts))}); give one -md, or "
                "--spec-type auto, which chooses among them"
            )
        if twice := [draft for draft in drafts if drafts.count(draft) > 1]:
            raise UsageError(f"-md names {twice[0]} {drafts.count(twice[0])} times; give each draft model once")

    @property
    def drafts(self) -> tuple[str | Path, ...]:
        """The bundles of the draft models, in order of preference."""
        if self.draft is None:
            return ()
        return (self.draft,) if isinstance(self.draft, str | Path) else tuple(self.draft)

    def _check_decoder(self) -> None:
        """Check that the decoder takes the drafter, and uses what else is given."""
        name, traits = self.writes.name, self.writes.traits
        if traits.drafters and self.drafter not in traits.drafters:
            named = self.drafter != "none"
            raise UsageError(
                f"--decoder {name} takes --spec-type {' or '.join(traits.drafters)}, not {self.drafter_name}"
                + ("; leave --spec-type out" if named else "; give a draft model with -md")
            )
        for option, value, default in (
            ("--spec-tree", self.policy or trees.DEFAULT, trees.DEFAULT),
            ("--verifier", self.verifier, SpecConfig.verifier),
        ):
            if not traits.guesses and value != default:
                raise UsageError(f"--decoder {name} makes no guesses, so {option} {value} has no use; leave it out")

    @cached_property
    def writes(self) -> ChosenDecoder:
        """The decoder."""
        return choose_decoder(self.decoder)

    @property
    def drafter_name(self) -> str:
        """The name that plans and figures give the drafter: its class's for a drafter of one's own."""
        return self.drafter if isinstance(self.drafter, str) else type(self.drafter).__name__

    @property
    def nodes(self) -> int:
        """Nodes of the largest tree: those of a path at most, if the policy's file says ``ONE_PATH``."""
        if self.drafter == "none" or not self.writes.traits.guesses:
            return 1
        path = self.draft_max + 1
        is_path = bool(self.policy) and getattr(load(POLICIES, self.policy), "ONE_PATH", False)
        return min(self.tree_nodes, path) if is_path and self.tree_nodes else self.tree_nodes or path


def create_drafter(
    name: str | Drafter,
    draft: Bundle | Sequence[Bundle] | None,
    *,
    device: str = "cpu",
    threads: int = 0,
    samples: int = 1,
    kv_bits: int | None = None,
) -> Drafter:
    """Return the drafter of this name; a ``Drafter`` is returned unchanged.

    Args:
        name: a name or a drafter, see ``SpecConfig``.
        draft: the draft model, or several for ``auto``; None: there is none.
        device: device of drafters that run a model.
        threads: number of CPU threads of such drafters; 0 leaves it to the device.
        samples: number of texts of one prompt, see ``SpecConfig``.
        kv_bits: bits of the target's keys and values. A draft model's have as many if its device has fewer bits than its
            default for them; None: the default.

    Raises:
        UsageError: no drafter has this name, or it needs one draft model and has none or several.
    """
    if not isinstance(name, str):
        return name
    create = load(DRAFTERS, name).create
    # A drafter that runs no draft model has no parameter ``draft``, and so on.
    drafts = () if draft is None else (draft,) if isinstance(draft, Bundle) else tuple(draft)
    parameters = inspect.signature(create).parameters
    if "draft" in parameters and len(drafts) > 1:
        raise UsageError(f"the drafter {name} takes one draft model, not {len(drafts)}; give one -md")
    values: dict[str, Any] = {"device": device, "threads": threads, "samples": samples, "kv_bits": kv_bits}
    values |= {"drafts": drafts, "draft": drafts[0] if drafts else None}
    drafter: Drafter = create(**{key: value for key, value in values.items() if key in parameters})
    return drafter


def run_taps(bundle: Bundle, drafter: Drafter, *, embeddings: bool) -> tuple[str, ...]:
    """Return the names of the values that the passes of a run return: those that the drafter and embeddings read.

    Raises:
        UnsupportedError: the model has no output of a last layer, of which embeddings are made.
    """
    layer = (last_layer(bundle)[0],) if embeddings else ()
    return tuple(dict.fromkeys([*layer, *graph_taps(drafter.taps)]))


def create_policy(name: str, rng: np.random.Generator | None = None, *, independent: bool = False) -> TreePolicy:
    """Return the tree policy of this name. With ``rng``, children are drawn; without it, the likeliest ones are chosen.

    With ``independent``, siblings are drawn independently of each other. Otherwise each excludes those before it.
    """
    if rng is not None and independent:
        from edgedec.runtime.trees._independent import Independent

        rng = Independent(rng.bit_generator)
    policy: TreePolicy = load(POLICIES, name).create(rng)
    return policy


def create_verifier(name: str, temperature: float) -> Verifier:
    """Return the verifier ``name``; at temperature 0 ``greedy``, which has the outcome of all others there.

    Raises:
        UsageError: ``name`` is ``greedy``, and the temperature is not 0.
    """
    if name == "greedy" and temperature:
        raise UsageError(f"--verifier greedy works at --temp 0 only, not {temperature}; leave it out, or give --temp 0")
    verifier: Verifier = load(VERIFIERS, name if temperature else "greedy").create()
    return verifier


def verifier_traits(name: str, temperature: float = 1.0) -> Traits:
    """Return the properties of the verifier that ``create_verifier`` returns for the same arguments."""
    traits: Traits = load(VERIFIERS, name if temperature else "greedy").TRAITS
    return traits
