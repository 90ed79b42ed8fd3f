"""Write the same texts with every verifier and every shape of tree, and measure tokens per round and per second.

The embedded pair continues held-out stories. The settings are matched: trees have the same number of nodes, the draft is the
same, its probabilities are processed as the target's, prompts and seeds are the same, nothing adapts, and each verifier gets
the children that it is made for (``TRAITS.children``).

A text is written with the embedded target. The target padded to the shape of BitNet b1.58 0.73B computes the same logits,
and more columns that are never chosen, so it has the same rounds, and only its passes and its verifying take longer. Its
tokens per second are computed: tokens divided by the sum of three times. Drafting and verifying (of rows with the padded
target's number of columns) are the seconds of their thread, which other processes do not lengthen; the padded target's pass
is timed for itself, and the fastest counts.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from edgedec import demo
from edgedec.bundle import Bundle
from edgedec.plugins import names
from edgedec.progress import Progress, silent
from edgedec.runtime.coupling import Coupled
from edgedec.runtime.decoders.cost import ObservedCost
from edgedec.runtime.position_random import PositionRandom
from edgedec.runtime.protocols import (
    F32,
    I32,
    CostModel,
    Draft,
    Limits,
    Outcome,
    Pass,
    State,
    Target,
    TokenTree,
)
from edgedec.runtime.sampling import Sampler, SamplingConfig
from edgedec.runtime.speculation import VERIFIERS, create_drafter, create_verifier, verifier_traits
from edgedec.runtime.targets import open_target
from edgedec.runtime.text.tokenizer import Tokenizer
from edgedec.runtime.trees._growth import Growth, Independent
from edgedec.runtime.visibility import tree as tree_visibility

__all__ = ["NODES", "SHAPES", "Figures", "measure", "pass_seconds"]

NODES = 8  # nodes of every tree
Levels = tuple[
    tuple[int, ...], ...
]  # for each level below the root: the places of its nodes' parents in the level above
SHAPES: Mapping[str, Levels] = {
    "chain": ((0,),) * 7,
    "static": ((0, 0), (0, 0, 1), (0,), (0,)),  # 2 | 2 1 | 1 | 1
    "wide": ((0, 0, 0, 0), (0, 0, 1)),  # 4 | 2 1
    "delayed": ((0,), (0, 0, 0), (0, 1, 2)),  # a stem of 1, then 3 branches of 2
}
PROMPT_TOKENS, MOST_TOKENS = 24, 128
LIMITS = Limits(nodes=32, depth=7, positions=512)
REPEATS = 20  # passes of the padded target, of which the fastest counts


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The figures of a verifier and a shape at one temperature.

    Members:
        tokens_per_round: tokens divided by rounds; the first token of a round is no guess.
        error: standard error of ``tokens_per_round``.
        tokens_per_second: computed for the padded target.
        draft_ms, verify_ms: mean milliseconds of a round.
    """

    tokens_per_round: float
    error: float
    tokens_per_second: float
    draft_ms: float
    verify_ms: float


class _Fixed:
    """A policy that always grows one shape."""

    sizes_itself = False

    def __init__(self, levels: Levels, rng: np.random.Generator | None) -> None:
        self._levels, self._rng = levels, rng

    def grow(self, draft: Draft, text: I32, limits: Limits, cost: CostModel, accept: F32) -> TokenTree:
        growth = Growth(draft, text, NODES, self._rng)
        above = [0]  # nodes of the level above; -1: the draft had no guess for this place
        for level in self._levels:
            inner = sorted({above[place] for place in level} - {-1})
            if not inner:
                break
            growth.expand(inner)
            here = []
            for place in level:
                grew = above[place] >= 0 and growth.add(above[place]) is not None
                here.append(len(growth) - 1 if grew else -1)
            above = here
        return growth.tree()


class _Pair:
    """The embedded target and its draft.

    Parameters:
        columns: number of columns of the rows that are verified.
    """

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self.bundle = Bundle.open(demo.bundle_path("demo"))
        self.target: Target = open_target(self.bundle, limits=LIMITS)
        self.state: State = self.target.open(LIMITS)
        self.cost = ObservedCost()
        drafter = create_drafter("model", Bundle.open(demo.bundle_path("demo-draft")))
        self.draft = drafter.open(self.target.info, LIMITS, self.cost)

    def read(self, prompt: I32) -> None:
        """Bring the prompt without its last token into the cache."""
        self.state.truncate(0)
        rows = np.arange(len(prompt) - 1, dtype=np.int32)
        self.target.submit([(self.state, Pass(ids=prompt[:-1], positions=rows))]).result()
        self.state.commit(rows)

    def rows(self, tree: TokenTree) -> F32:
        """Return the target's logits after every node, float32 [n, columns]."""
        positions = [self.state.length]
        for parent in tree.parents[1:].tolist():
            positions.append(positions[parent] + 1)
        work = Pass(
            ids=tree.tokens,
            positions=np.array(positions, np.int32),
            visible=tree_visibility(tree.parents),
            logits=np.arange(len(tree.tokens), dtype=np.int32),
        )
        (result,) = self.target.submit([(self.state, work)]).result()
        wide = np.zeros((len(tree.tokens), self._columns), np.float32)
        wide[:, : result.logits.shape[1]] = result.logits
        return wide


def _path(tree: TokenTree, node: int) -> list[int]:
    tokens = []
    while node > 0:
        tokens.append(int(tree.tokens[node]))
        node = int(tree.parents[node])
    return tokens[::-1]


def _prompts(bundle: Bundle) -> list[I32]:
    tokenizer = Tokenizer.load(bundle.tokenizer_file)
    stories = [line for line in demo.HELD_OUT.read_text("utf-8").splitlines() if line]
    return [tokenizer.encode(story)[:PROMPT_TOKENS] for story in stories]


def pass_seconds(target: Target, limits: Limits) -> float:
    """Return the seconds of a pass of ``NODES`` rows over 64 committed rows, the fastest of ``REPEATS``."""
    state = target.open(limits)
    for start in (0, 32):
        rows = np.arange(32, dtype=np.int32)
        target.submit([(state, Pass(ids=rows, positions=start + rows))]).result()
        state.commit(rows)
    chain = np.arange(NODES, dtype=np.int32)
    work = Pass(ids=chain, positions=state.length + chain, visible=tree_visibility(chain - 1), logits=chain)
    seconds = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        target.submit([(state, work)]).result()
        seconds.append(time.perf_counter() - began)
    state.close()
    return min(seconds)


def _write(
    pair: _Pair, prompts: Sequence[I32], name: str, levels: Levels, config: SamplingConfig, rounds: int, passes: float
) -> Figures:
    """Write texts until there are ``rounds`` rounds, and return their figures."""
    sampler, traits = Sampler(config, pair.bundle.tokens.size), verifier_traits(name)
    verifier = create_verifier(name, config.temperature)
    lengths: list[int] = []
    drafting = verifying = 0.0
    accept = np.full(LIMITS.depth, 0.6, np.float32)
    for at in range(rounds):  # more texts than are needed
        prompt, random = prompts[at % len(prompts)], PositionRandom(seed=at)
        generator = np.random.PCG64([1, at])
        rng = {"drawn": np.random.Generator(generator), "independent": Independent(generator)}.get(traits.children)
        policy = Coupled(
            policy=_Fixed(levels, rng), sampler=sampler, random=random if traits.children == "coupled" else None
        )
        pair.read(prompt)
        text = prompt.tolist()
        while len(text) < len(prompt) + MOST_TOKENS and len(lengths) < rounds:
            ids = np.array(text, np.int32)
            began = time.thread_time()
            tree = policy.grow(pair.draft, ids, LIMITS, pair.cost, accept)
            drafting += time.thread_time() - began
            logits = pair.rows(tree)

            def distribution(node: int, logits: F32 = logits, tree: TokenTree = tree, ids: I32 = ids) -> F32:
                return sampler.distribution(logits[node], np.concatenate([ids, np.array(_path(tree, node), np.int32)]))

            began = time.thread_time()
            outcome: Outcome = verifier.accept(tree, distribution, random, len(text))
            verifying += time.thread_time() - began
            pair.state.commit(outcome.path)
            pair.draft.observe(tree, outcome)
            accepted = tree.tokens[outcome.path[1:]].tolist()
            lengths.append(len(outcome.path))
            text += [*accepted, outcome.next_token]
            if set(pair.bundle.tokens.eos) & {*accepted, outcome.next_token}:
                break
        if len(lengths) == rounds:
            break
    tokens = np.array(lengths)
    return Figures(
        tokens_per_round=float(tokens.mean()),
        error=float(tokens.std() / np.sqrt(rounds)),
        tokens_per_second=float(tokens.sum()) / (drafting + verifying + rounds * passes),
        draft_ms=1000 * drafting / rounds,
        verify_ms=1000 * verifying / rounds,
    )


def measure(
    temperatures: Sequence[float],
    rounds: int,
    passes: float,
    *,
    columns: int,
    whole: bool = False,
    progress: Progress = silent,
) -> dict[str, dict[str, dict[str, Figures]]]:
    """Return the figures by temperature, shape and verifier.

    Parameters:
        rounds: rounds of each combination.
        passes: seconds of a pass of the padded target.
        columns: number of columns of its rows.
        whole: leave out top-k, top-p and min-p.
    """
    pair = _Pair(columns)
    prompts = _prompts(pair.bundle)
    verifiers = [name for name in names(VERIFIERS) if name != "greedy"]
    plain = SamplingConfig(top_k=0, top_p=1, min_p=0) if whole else SamplingConfig()
    table: dict[str, dict[str, dict[str, Figures]]] = {}
    total = len(temperatures) * len(SHAPES)
    for temperature in temperatures:
        config = replace(plain, temperature=temperature)
        shapes = table[str(temperature)] = {}
        for shape, levels in SHAPES.items():
            progress(f"temperature {temperature}, {shape}", len(table) * len(SHAPES) - len(SHAPES) + len(shapes), total)
            shapes[shape] = {
                name: _write(pair, prompts, name, levels, config, rounds, passes)
                for name in verifiers
                if shape == "chain" or verifier_traits(name).policies != ("chain",)
            }
    pair.state.close()
    return table
