"""Compare verifiers at the same positions of the same texts, by shape of the tree.

The embedded pair continues held-out stories without guesses. At every ``EVERY``-th position, each verifier verifies a tree
of each shape, with the children that it is made for (``TRAITS.children``). The settings are matched: trees have the same
number of nodes, the draft is the same, and its probabilities are processed as the target's. Verifiers with the same kind of
children get the same trees. So the differences between them are more exact than their values, which vary from text to text.

The target padded to the shape of BitNet b1.58 0.73B computes the same logits, and more columns that are never chosen, so it
has the same rounds, and only its passes and its verifying take longer. Its tokens per second are computed: tokens divided by
the sum of three times. Drafting and verifying (of rows with the padded target's number of columns) are the seconds of their
thread, which other processes do not lengthen; the padded target's pass is timed for itself, and the fastest counts.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from edgedec import demo
from edgedec.bundle.bundle import Bundle
from edgedec.plugins import names
from edgedec.progress import Progress, silent
from edgedec.runtime.coupling import Coupled
from edgedec.runtime.drafting import alone
from edgedec.runtime.planning.speculation import (
    VERIFIERS,
    create_drafter,
    create_policy,
    create_verifier,
    verifier_traits,
)
from edgedec.runtime.protocols import (
    F32,
    I32,
    CostModel,
    Draft,
    Drafting,
    Limits,
    Outcome,
    Pass,
    State,
    Target,
    TokenTree,
    TreePolicy,
    TreeSize,
    Verifier,
)
from edgedec.runtime.rounds.cost import ObservedCost
from edgedec.runtime.sampling.position_random import PositionRandom
from edgedec.runtime.sampling.sampling import Sampler, SamplingConfig
from edgedec.runtime.targets import open_target
from edgedec.runtime.text.tokenizer import Tokenizer
from edgedec.runtime.trees._growth import Growth
from edgedec.runtime.trees._independent import Independent
from edgedec.runtime.trees.static import Shape, grown
from edgedec.runtime.visibility import tree as tree_visibility

__all__ = [
    "LIMITS",
    "NODES",
    "SHAPES",
    "Figures",
    "Pair",
    "Round",
    "held_out_prompts",
    "measure",
    "pass_seconds",
    "write",
]

NODES = 8  # nodes of every tree
# Shapes of trees; None: the tree of the policy ``dynamic``, which follows the draft's probabilities.
SHAPES: Mapping[str, Shape | None] = {
    "chain": ((0,),) * 7,
    "static": ((0, 0), (0, 0, 1), (0,), (0,)),  # 2 | 2 1 | 1 | 1
    "wide": ((0, 0, 0, 0), (0, 0, 1)),  # 4 | 2 1
    "delayed": ((0,), (0, 0, 0), (0, 1, 2)),  # a stem of 1, then 3 branches of 2
    "dynamic": None,
}
PROMPT_TOKENS, MOST_TOKENS = 24, 128
EVERY, POSITIONS = 8, 4  # distance of positions in a text, and their number
DRAWS = 4  # times that a tree is verified, with other random numbers
LIMITS = Limits(nodes=32, depth=7, positions=512)
REPEATS = 20  # passes of the padded target, of which the fastest counts


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The figures of a verifier and a shape at one temperature.

    Members:
        tokens_per_round: mean tokens of a round, including the one after the accepted guesses.
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

    def __init__(self, levels: Shape, rng: np.random.Generator | None) -> None:
        self._levels, self._rng = levels, rng

    def sizes(self, limits: Limits, accept: F32) -> tuple[TreeSize, ...]:
        return ()

    def grow(self, draft: Draft, text: I32, limits: Limits, cost: CostModel, accept: F32) -> Drafting[TokenTree]:
        return grown(Growth(draft, text, NODES, self._rng), self._levels)


class Pair:
    """The embedded target and its draft.

    Parameters:
        columns: number of columns of the rows that are verified, at least that of the target.
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
        wide = np.zeros((len(tree.tokens), max(self._columns, result.logits.shape[1])), np.float32)
        wide[:, : result.logits.shape[1]] = result.logits
        return wide


def _path(tree: TokenTree, node: int) -> list[int]:
    tokens = []
    while node > 0:
        tokens.append(int(tree.tokens[node]))
        node = int(tree.parents[node])
    return tokens[::-1]


def held_out_prompts(bundle: Bundle) -> list[I32]:
    """Return the beginnings of the held-out stories."""
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


@dataclass(frozen=True, kw_only=True)
class Round:
    """A round: its tree and outcome, and the seconds of drafting and of verifying."""

    tree: TokenTree
    outcome: Outcome
    drafting: float
    verifying: float


def write(
    pair: Pair,
    prompts: Sequence[I32],
    name: str,
    policy: Callable[[np.random.Generator | None], TreePolicy],
    config: SamplingConfig,
    accept: Callable[[], F32],
) -> Iterator[Round]:
    """Write texts with the verifier ``name``, one after the other without end, and yield their rounds.

    Parameters:
        policy: returns the policy for a text; its argument draws the children, or is None if they are chosen.
        accept: returns the measured acceptance that the policy gets.
    """
    sampler, traits = Sampler(config, pair.bundle.tokens.size), verifier_traits(name, config.temperature)
    verifier = create_verifier(name, config.temperature)
    for at in count():
        prompt, random = prompts[at % len(prompts)], PositionRandom(seed=at)
        bits = np.random.PCG64([1, at])
        rng = {"drawn": np.random.Generator(bits), "independent": Independent(bits)}.get(traits.children)
        grown = policy(rng)
        if config.temperature:
            grown = Coupled(policy=grown, sampler=sampler, random=random if traits.children == "coupled" else None)
        pair.read(prompt)
        text = prompt.tolist()
        while len(text) < len(prompt) + MOST_TOKENS:
            ids = np.array(text, np.int32)
            began = time.thread_time()
            tree = alone(grown.grow(pair.draft, ids, LIMITS, pair.cost, accept()))
            drafting = time.thread_time() - began
            logits = pair.rows(tree)

            def distribution(node: int, logits: F32 = logits, tree: TokenTree = tree, ids: I32 = ids) -> F32:
                return sampler.distribution(logits[node], np.concatenate([ids, np.array(_path(tree, node), np.int32)]))

            began = time.thread_time()
            outcome = verifier.accept(tree, distribution, random, len(text))
            verifying = time.thread_time() - began
            pair.state.commit(outcome.path)
            pair.draft.observe(tree, outcome)
            written = [*tree.tokens[outcome.path[1:]].tolist(), outcome.next_token]
            text += written
            yield Round(tree=tree, outcome=outcome, drafting=drafting, verifying=verifying)
            if set(pair.bundle.tokens.eos) & set(written):
                break


class _Sums:
    """The sums of a verifier and a shape at one temperature."""

    def __init__(self) -> None:
        self.tokens: list[float] = []  # mean of each position
        self.drafting = self.verifying = 0.0

    def figures(self, passes: float) -> Figures:
        """Return the means; ``passes`` are the seconds of a pass of the padded target."""
        count = len(self.tokens)
        drafting, verifying = self.drafting / count, self.verifying / count
        mean = float(np.mean(self.tokens))
        return Figures(
            tokens_per_round=mean,
            error=float(np.std(self.tokens) / np.sqrt(count)),
            tokens_per_second=mean / (drafting + verifying + passes),
            draft_ms=1000 * drafting,
            verify_ms=1000 * verifying,
        )


def _positions(pair: Pair, prompts: Sequence[I32], config: SamplingConfig, number: int) -> Iterator[tuple[I32, int]]:
    """Yield ``number`` texts so far, int32 [t], and the seed of each; its cache has all of it but the last token."""
    sampler, found = Sampler(config, pair.bundle.tokens.size), 0
    for seed in count():
        random, text = PositionRandom(seed=seed), prompts[seed % len(prompts)].tolist()
        pair.read(np.array(text, np.int32))
        for step in range(1, EVERY * POSITIONS + 1):
            ids = np.array(text, np.int32)
            logits = pair.rows(TokenTree(tokens=ids[-1:], parents=np.full(1, -1, np.int32), draft={}))
            token = random.token(sampler.distribution(logits[0], ids), len(text))
            pair.state.commit(np.zeros(1, np.int32))
            text.append(token)
            if token in pair.bundle.tokens.eos:
                break
            if step % EVERY == 0:
                yield np.array(text, np.int32), seed
                found += 1
                if found == number:
                    return


def _at(
    pair: Pair,
    text: I32,
    seed: int,
    sampler: Sampler,
    levels: Shape | None,
    groups: Mapping[str, Mapping[str, Verifier]],
) -> Iterator[tuple[str, float, float, float]]:
    """Yield (verifier, tokens, seconds of drafting, seconds of verifying) of one shape of ``SHAPES`` after a text.

    Parameters:
        groups: kind of children -> name -> verifier.
    """
    accept = np.full((LIMITS.depth, 1), 0.6, np.float32)  # the shapes do not depend on it
    for children, verifiers in groups.items():
        tokens = dict.fromkeys(verifiers, 0.0)
        drafting = 0.0
        spent = dict.fromkeys(verifiers, 0.0)
        for draw in range(DRAWS if children != "chosen" else 1):
            random = PositionRandom(seed=seed, sample=1 + draw)
            bits = np.random.PCG64([seed, draw, len(text)])
            rng = {"drawn": np.random.Generator(bits), "independent": Independent(bits)}.get(children)
            grows = create_policy("dynamic", rng) if levels is None else _Fixed(levels, rng)
            policy = Coupled(policy=grows, sampler=sampler, random=random if children == "coupled" else None)
            began = time.thread_time()
            tree = alone(policy.grow(pair.draft, text, replace(LIMITS, nodes=NODES), pair.cost, accept))
            drafting += time.thread_time() - began
            logits = pair.rows(tree)

            def distribution(node: int, logits: F32 = logits, tree: TokenTree = tree) -> F32:
                return sampler.distribution(logits[node], np.concatenate([text, np.array(_path(tree, node), np.int32)]))

            for name, verifier in verifiers.items():
                began = time.thread_time()
                outcome = verifier.accept(tree, distribution, random, len(text))
                spent[name] += time.thread_time() - began
                tokens[name] += len(outcome.path)
        times = DRAWS if children != "chosen" else 1
        for name in verifiers:
            yield name, tokens[name] / times, drafting / times, spent[name] / times


def measure(
    temperatures: Sequence[float],
    positions: int,
    passes: float,
    *,
    columns: int,
    whole: bool = False,
    progress: Progress = silent,
) -> dict[str, dict[str, dict[str, Figures]]]:
    """Return the figures by temperature, shape and verifier.

    Parameters:
        positions: number of positions at which rounds begin.
        passes: seconds of a pass of the padded target.
        columns: number of columns of its rows.
        whole: leave out top-k, top-p and min-p.
    """
    pair = Pair(columns)
    prompts = held_out_prompts(pair.bundle)
    plain = SamplingConfig(top_k=0, top_p=1, min_p=0) if whole else SamplingConfig()
    table: dict[str, dict[str, dict[str, Figures]]] = {}
    for temperature in temperatures:
        config = replace(plain, temperature=temperature)
        sampler = Sampler(config, pair.bundle.tokens.size)
        sums: dict[str, dict[str, _Sums]] = {shape: defaultdict(_Sums) for shape in SHAPES}
        for done, (text, seed) in enumerate(_positions(pair, prompts, config, positions)):
            progress(f"temperature {temperature}", done, positions)
            for shape, levels in SHAPES.items():
                groups: dict[str, dict[str, Verifier]] = defaultdict(dict)
                for name in names(VERIFIERS):
                    traits = verifier_traits(name)
                    # ``wide`` is a shape that ``static`` might have.
                    policy = "static" if shape == "wide" else shape
                    if name != "greedy" and (not traits.policies or policy in traits.policies):
                        groups[traits.children][name] = create_verifier(name, temperature)
                for name, tokens, drafting, verifying in _at(pair, text, seed, sampler, levels, groups):
                    sums[shape][name].tokens.append(tokens)
                    sums[shape][name].drafting += drafting
                    sums[shape][name].verifying += verifying
        table[str(temperature)] = {
            shape: {name: one.figures(passes) for name, one in sorted(by_name.items())}
            for shape, by_name in sums.items()
        }
    pair.state.close()
    return table
