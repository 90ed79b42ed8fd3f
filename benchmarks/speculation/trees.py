"""Compare the tree policies: tokens of a round, tokens per second, and the default tree beside a chain on six kinds of text.

    .venv/bin/python -m benchmarks.speculation.trees [--quick] [--no-padded] [--turns N] [--spec-type NAME] [--json]

**By size.** Every policy has a session of the embedded pair for each size, in which every round has the largest tree. All of
them continue the same held-out openings in turn. Tokens per round are all tokens by all rounds, which no clock decides;
tokens per second, and milliseconds on the CPUs, are the median over the openings. ``hardware`` chooses its own size within
the limit.

**By kind.** Here the decoder chooses the size, as in a session with the defaults (``--draft-max 8``): ``dynamic``, the
default of all but small models, and a chain write the same texts of six kinds in turn, with the embedded pair, whose default
is the chain, and with its target padded to BitNet b1.58 0.73B's shape, which writes the same texts (the first run writes it
into edgedec's cache, 488 MB). A ratio is the chain's seconds by those of ``dynamic``; the seconds of a text are the median
over the turns, and those of a kind the sum of its texts. With one thread the process's time on the CPUs gives a second
ratio, which other programs disturb less. ``chain, again`` is a chain in a session of its own: its ratio is 1 but for noise,
also that of the clock, by which a session decides about its trees. Prompts whose text loops or ends early are left out, as
in ``benchmarks/speculation/drafters.py``.

No text depends on the tree. Each is compared with those of the other trees, token for token, and a difference ends the
benchmark with an error. ``--quick`` takes a minute: few texts, and no padded model.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.cpu.decode import Others, cpu_name
from benchmarks.speculation.padded_model import PromptTask, choose, padded_bundle
from benchmarks.speculation.samples import largest_trees
from benchmarks.support.prompts import KINDS, read_prompts, shared_prompts
from edgedec import demo
from edgedec.cli.console import note, print_json, print_table, progress
from edgedec.errors import DeviceError, EdgedecError, UsageError
from edgedec.plugins import names
from edgedec.progress import Progress
from edgedec.runtime.planning.speculation import DRAFTERS, POLICIES, SpecConfig
from edgedec.runtime.protocols import I32
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.session import Session
from edgedec.runtime.trees import DEFAULT

__all__ = ["TreeText", "by_kind", "by_size", "kind_figures", "size_figures"]

SIZES, TEMPERATURES = (2, 4, 8, 16, 32), (0.0, 0.8)
OPENINGS, OPENING_TOKENS, OPENING_WORDS = 12, 100, 8
SETTLE_S = 0.03  # seconds after which the waiting threads of another session have stopped
SPARE = 4  # prompts that are read for each prompt that is measured, because some are left out
CHAIN, AGAIN = "chain", "chain, again"  # the second is the first in another session, which shows the noise


@dataclass(frozen=True, kw_only=True)
class TreeText:
    """A text that was written with one tree.

    Members:
        tokens: its ids.
        rounds: number of rounds.
        seconds: duration from the first token to the last one.
        cpu_seconds: time of the process on the CPUs, with the rest of the prompt that the cache does not have.
    """

    tokens: tuple[int, ...]
    rounds: int
    seconds: float
    cpu_seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second after the first token."""
        return (len(self.tokens) - 1) / self.seconds


@contextmanager
def sessions(model: str | Path, specs: Mapping[str, SpecConfig], threads: int) -> Iterator[dict[str, Session]]:
    """Open a session of a model for each setting of speculation."""
    with ExitStack() as opened:
        yield {
            name: opened.enter_context(Session.open(model, spec=spec, threads=threads)) for name, spec in specs.items()
        }


def settings_of(policy: str, drafter: str = "model", nodes: int = 0) -> SpecConfig:
    """Return the settings of a policy; ``nodes`` of the largest tree, 0 as in a session with the defaults."""
    draft = demo.bundle_path("demo-draft") if drafter in ("model", "auto") else None
    longest = nodes - 1 if nodes else SpecConfig.draft_max
    return SpecConfig(drafter=drafter, draft=draft, policy=policy, draft_max=longest, tree_nodes=nodes)


def write(session: Session, prompt: str | I32, tokens: int, temperature: float, seed: int = 0) -> TreeText:
    """Write a text."""
    time.sleep(SETTLE_S)
    sampling, began = SamplingConfig(temperature=temperature, seed=seed), time.process_time()
    answer = session.generate(prompt, n_predict=tokens, sampling=sampling, ignore_eos=True)
    cpu_seconds, times = time.process_time() - began, answer.timings
    return TreeText(
        tokens=tuple(answer.tokens),
        rounds=times.rounds.count,
        seconds=times.predicted_ms / 1000,
        cpu_seconds=cpu_seconds,
    )


def check_equal(what: str, texts: Mapping[str, TreeText]) -> None:
    """Compare the texts of all trees.

    Raises:
        DeviceError: two of them differ.
    """
    first, *others = texts
    for other in others:
        if texts[other].tokens != texts[first].tokens:
            raise DeviceError(f"{what}: the trees {first} and {other} wrote different texts; run `edgedec doctor`")


def by_size(
    openings: Sequence[str], *, tokens: int, threads: int, bar: Progress
) -> dict[tuple[float, int], dict[str, list[TreeText]]]:
    """Return the texts of every policy, by temperature and nodes, with the largest tree in every round."""
    texts: dict[tuple[float, int], dict[str, list[TreeText]]] = {}
    policies = list(names(POLICIES))
    for nodes in SIZES:
        specs = {policy: settings_of(policy, nodes=nodes) for policy in policies}
        with sessions(demo.bundle_path(), specs, threads) as opened, largest_trees():
            for temperature in TEMPERATURES:
                texts[temperature, nodes] = {policy: [] for policy in policies}
                for seed, opening in enumerate(openings):
                    bar(f"{nodes} nodes, T {temperature:g}", SIZES.index(nodes), len(SIZES))
                    turn = {name: write(one, opening, tokens, temperature, seed) for name, one in opened.items()}
                    check_equal(f"{nodes} nodes at {opening!r}", turn)
                    for policy, text in turn.items():
                        texts[temperature, nodes][policy].append(text)
    return texts


def size_figures(texts: Mapping[str, Sequence[TreeText]]) -> dict[str, dict[str, float]]:
    """Return, by policy, the tokens of a round, and of the median text tokens per second and milliseconds on the CPUs."""
    return {
        policy: {
            "tokens_per_round": sum(len(text.tokens) for text in own) / sum(text.rounds for text in own),
            "tokens_per_second": median(text.tokens_per_second for text in own),
            "cpu_ms": median(1000 * text.cpu_seconds for text in own),
        }
        for policy, own in texts.items()
    }


def by_kind(
    model: str | Path,
    tasks: Sequence[PromptTask],
    policies: Sequence[str],
    *,
    drafter: str,
    tokens: int,
    temperature: float,
    turns: int,
    threads: int,
    bar: Progress,
) -> dict[str, list[list[dict[str, TreeText]]]]:
    """Return the texts by kind, prompt, turn and policy. Sizes are the decoder's own.

    A turn is a text of each policy. The policy that begins changes from turn to turn. A first turn, which reads the prompt,
    is not returned. Each prompt has sessions of its own, because a session measures the cost of passes when it is opened,
    and a wrong measurement on a busy machine decides about the sizes of all its trees.
    """
    kinds: dict[str, list[list[dict[str, TreeText]]]] = {}
    specs = {policy: settings_of(CHAIN if policy == AGAIN else policy, drafter) for policy in policies}
    for at, task in enumerate(tasks):
        bar(f"{task.kind}, T {temperature:g}", at, len(tasks))
        done = []
        with sessions(model, specs, threads) as opened:
            for turn in range(turns + 1):
                order = policies if turn % 2 else policies[::-1]
                texts = {policy: write(opened[policy], task.ids, tokens, temperature) for policy in order}
                check_equal(task.source, texts)
                done.append({policy: texts[policy] for policy in policies})
        kinds.setdefault(task.kind, []).append(done[1:])
    return kinds


def kind_figures(texts: Sequence[Sequence[Mapping[str, TreeText]]], policies: Sequence[str]) -> dict[str, Any]:
    """Return the figures of a kind.

    Args:
        texts: by prompt, turn and policy.
        policies: the chain and others.

    Returns:
        By policy, the tokens of a round, the tokens per second, and ``ratio``, the chain's seconds by the policy's;
        ``cpu_ratio`` is that of the time on the CPUs.
    """
    seconds, cpu_seconds = (
        {policy: sum(median(getattr(turn[policy], name) for turn in turns) for turns in texts) for policy in policies}
        for name in ("seconds", "cpu_seconds")
    )
    tokens = sum(len(turns[0][policies[0]].tokens) - 1 for turns in texts)
    result = {}
    for policy in policies:
        own = [turn[policy] for turns in texts for turn in turns]
        result[policy] = {
            "tokens_per_round": sum(len(text.tokens) for text in own) / sum(text.rounds for text in own),
            "tokens_per_second": tokens / seconds[policy],
            "ratio": seconds[CHAIN] / seconds[policy],
            "cpu_ratio": cpu_seconds[CHAIN] / cpu_seconds[policy],
        }
    return {"prompts": len(texts), "policies": result}


@dataclass(frozen=True, kw_only=True)
class TreeSettings:
    """Settings of a run.

    Members:
        openings: openings of the sizes' texts.
        prompts: prompts of each kind.
        tokens: tokens of a text of a kind.
        turns: times that each text of a kind is written.
        policies: the policies of the kinds: the chain twice, and those to compare with it.
        drafter: the drafter of the kinds.
        threads: threads of the model.
        padded: whether the padded model is measured, too.
    """

    openings: int
    prompts: int
    tokens: int
    turns: int
    policies: Sequence[str]
    drafter: str
    threads: int
    padded: bool


def measure(settings: TreeSettings) -> dict[str, Any]:
    """Return all figures.

    Raises:
        EdgedecError: a model cannot be made or run, or a tree changed a text.
    """
    small, others = demo.bundle_path(), Others()
    stories = [line for line in demo.HELD_OUT.read_text("utf-8").splitlines() if line]
    openings = [" ".join(story.split()[:OPENING_WORDS]) for story in stories[: settings.openings]]
    with progress("sizes") as bar:
        texts = by_size(openings, tokens=OPENING_TOKENS, threads=1, bar=bar)
    with progress("prompts") as bar, Session.open(small, threads=settings.threads) as session:
        read = read_prompts(shared_prompts(), SPARE * settings.prompts)
        choice = choose(session, read, settings.prompts, settings.tokens, bar)
    models: dict[str, Path] = {"embedded": small}
    if settings.padded:
        with progress("the padded model, once") as bar:
            models["padded"] = padded_bundle(small, bar)
    return {
        "sizes": [
            {"temperature": temperature, "nodes": nodes, "policies": size_figures(turns)}
            for (temperature, nodes), turns in texts.items()
        ],
        "kinds": [
            {"model": name, "temperature": temperature, "kind": kind, **kind_figures(turns, settings.policies)}
            for name, model in models.items()
            for temperature in TEMPERATURES
            for kind, turns in _kinds(name, model, choice.tasks, temperature, settings).items()
        ],
        "details": {
            "cpu": cpu_name(),
            "cpus": os.cpu_count(),
            "others_share": others.share(),
            "load_average": list(os.getloadavg()),
            "threads": settings.threads,
            "turns": settings.turns,
            "tokens": settings.tokens,
            "drafter": settings.drafter,
            "prompts": {
                kind: {"tried": choice.tried[kind], "looping": choice.looping[kind], "ended_early": choice.short[kind]}
                for kind in KINDS
            },
        },
    }


def _kinds(
    name: str, model: Path, tasks: Sequence[PromptTask], temperature: float, settings: TreeSettings
) -> dict[str, list[list[dict[str, TreeText]]]]:
    with progress(f"{name}, T {temperature:g}") as bar:
        return by_kind(
            model,
            tasks,
            settings.policies,
            drafter=settings.drafter,
            tokens=settings.tokens,
            temperature=temperature,
            turns=settings.turns,
            threads=settings.threads,
            bar=bar,
        )


def print_figures(result: Mapping[str, Any]) -> None:
    """Print the figures as tables."""
    details = result["details"]
    print(f"{details['cpu']}; other processes took {details['others_share']:.0%} of the CPUs\n")
    print("every round has the largest tree: tokens per round (tokens per second, ms of a text on the CPUs)")
    policies = list(result["sizes"][0]["policies"])
    rows = [("T", "nodes", *policies)]
    for size in result["sizes"]:
        cells = [
            f"{own['tokens_per_round']:.2f} ({own['tokens_per_second']:.0f}, {own['cpu_ms']:.0f})"
            for own in size["policies"].values()
        ]
        rows.append((f"{size['temperature']:g}", str(size["nodes"]), *cells))
    print_table(rows, right=range(2 + len(policies)))
    print(
        "\nthe decoder chooses the size: speed as a multiple of the chain's, by the clock and by the time on the CPUs"
    )
    policies = list(result["kinds"][0]["policies"])
    rows = [("model", "T", "kind", "prompts", *policies)]
    for kind in result["kinds"]:
        cells = [
            f"{own['ratio']:.3f} {own['cpu_ratio']:.3f} ({own['tokens_per_round']:.2f}, {own['tokens_per_second']:.0f})"
            for own in kind["policies"].values()
        ]
        rows.append((kind["model"], f"{kind['temperature']:g}", kind["kind"], str(kind["prompts"]), *cells))
    print_table(rows, right=(1, 3, *range(4, 4 + len(policies))))
    for kind, counts in details["prompts"].items():
        if kind not in {own["kind"] for own in result["kinds"]}:
            print(f"{kind}: no prompt left of {counts['tried']}")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cpus, default = os.cpu_count() or 1, DEFAULT
    parser.add_argument("--quick", action="store_true", help="a minute: few texts, and no padded model")
    parser.add_argument("--no-padded", action="store_true", help="leave the padded model out")
    parser.add_argument("--prompts", type=int, default=2, metavar="N", help="prompts of each kind")
    parser.add_argument("--tokens", type=int, default=96, metavar="N", help="tokens of each text of a kind")
    parser.add_argument("--turns", type=int, default=7, metavar="N", help="times that each of them is written")
    parser.add_argument("--threads", type=int, default=min(2, cpus), metavar="N", help="threads of the kinds' models")
    parser.add_argument(
        "--policies", nargs="+", default=[default], choices=list(names(POLICIES)), help="compare these with a chain"
    )
    parser.add_argument("--spec-type", default="model", choices=list(names(DRAFTERS)), help="drafter of the kinds")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    quick = args.quick
    settings = TreeSettings(
        openings=2 if quick else OPENINGS,
        prompts=1 if quick else args.prompts,
        tokens=args.tokens,
        turns=2 if quick else args.turns,
        policies=list(dict.fromkeys([CHAIN, AGAIN, *args.policies])),
        drafter=args.spec_type,
        threads=args.threads,
        padded=not (quick or args.no_padded),
    )
    try:
        if min(settings.prompts, settings.turns) < 1 or settings.tokens < 16 or not 1 <= settings.threads <= cpus:
            raise UsageError(
                f"--prompts and --turns must be at least 1, --tokens at least 16, and --threads 1 to {cpus}, the CPUs "
                "of this machine"
            )
        result = measure(settings)
    except EdgedecError as error:
        note(f"trees: {error}")
        sys.exit(error.exit_code)
    if args.json:
        print_json(result)
    else:
        print_figures(result)


if __name__ == "__main__":
    main()
