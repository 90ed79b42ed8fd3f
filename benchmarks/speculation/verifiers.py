"""Measure the share of guesses that are accepted, by the rule that chooses them, and compare verifiers in matched settings.

    .venv/bin/python -m benchmarks.speculation.verifiers [--every 5] [--draws 32] [--positions 300] [--whole] [--json]

The first table, ``shares``: the embedded pair reads the held-out stories. After every ``--every``-th token, its target's
distribution p and its draft's distribution q, both after temperature, top-k, top-p and min-p at their defaults, give the
probability that one guess is accepted, and that one of four is. The rules:

- ``rejection, raw``: guesses are drawn from q as the draft computes it, without the sampling options (exact: sum min(p, q));
- ``rejection``: guesses are drawn from q;
- ``likeliest``: the likeliest tokens of q, accepted where they equal a draw from p (exact);
- ``inverse``: p and q are each inverted at one shared uniform number, tokens in the order of their ids;
- ``coupled, E``: shared numbers for each token, chosen by q / E: the token that comes if q equals p;
- ``coupled``: chosen by q * E**-0.3, which is what edgedec does (``runtime/coupling.py``).

``inverse`` and both coupled rules are means over ``--draws`` draws of the numbers at each position. Over the 1,800 positions
of the defaults, the standard error of a share is about 0.01; that of a difference is smaller.

The second table, ``matched``: tokens per round and per second by temperature, shape of the tree and verifier
(``verifiers_matched.py``), for trees of 8 nodes. ``--whole`` writes with top-k, top-p and min-p switched off. The padded
target is written on first use (seconds, 488 MB). Each position has four rounds with other random numbers.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict

import numpy as np
from numpy.typing import NDArray

from benchmarks.speculation import verifiers_matched as matched
from benchmarks.speculation.padded_model import padded_bundle
from edgedec import demo
from edgedec.bundle.bundle import Bundle
from edgedec.runtime.coupling import SHARED
from edgedec.runtime.protocols import F32, I32, Limits, Pass
from edgedec.runtime.sampling.sampling import Sampler, SamplingConfig
from edgedec.runtime.targets import open_target
from edgedec.runtime.text.tokenizer import Tokenizer

__all__ = ["TEMPERATURES", "accepted", "measure"]

TEMPERATURES = (0.2, 0.6, 0.8, 1.0, 1.2)
LIMITS = Limits(nodes=64, depth=0, positions=512)
CHILDREN = 4  # guesses side by side
LEAST_PAST = 8  # tokens of a story before the first position that counts
NO_HISTORY = np.zeros(0, np.int32)

F64 = NDArray[np.float64]


def rows_of(name: str, texts: list[I32]) -> list[F32]:
    """Return the logits of an embedded model after each token of each text, float32 [tokens, V]."""
    target = open_target(Bundle.open(demo.bundle_path(name)), limits=LIMITS)
    result = []
    for ids in texts:
        state, parts = target.open(LIMITS), []
        for start in range(0, len(ids), LIMITS.nodes):
            chunk = ids[start : start + LIMITS.nodes]
            rows = np.arange(len(chunk), dtype=np.int32)
            work = Pass(ids=chunk, positions=start + rows, logits=rows)
            (done,) = target.submit([(state, work)]).result()
            parts.append(done.logits.copy())
            state.commit(rows)
        state.close()
        result.append(np.concatenate(parts))
    return result


def accepted(p: F64, q: F64, raw: F64, rng: np.random.Generator, draws: int) -> dict[str, tuple[float, float]]:
    """Return by rule the probability that one guess is accepted, and that one of ``CHILDREN`` is.

    Parameters:
        p, q, raw: float64 [V], the target's and the draft's distribution, and the draft's without sampling options.
        draws: number of draws of the shared numbers.
    """
    ids = np.flatnonzero((p > 0) | (q > 0))
    p, q, raw = p[ids], q[ids], raw[ids]
    by_q = np.argsort(-q, kind="stable")
    waits = rng.standard_exponential((draws, len(ids)))
    with np.errstate(divide="ignore"):
        token = (waits / p).argmin(axis=1)
    uniform = rng.random(draws)
    guess, said = (
        np.searchsorted(np.cumsum(x) / x.sum(), uniform, side="right").clip(max=len(ids) - 1) for x in (q, p)
    )
    return {
        "rejection, raw": (float(np.minimum(p, raw).sum()), float("nan")),
        "rejection": (float(np.minimum(p, q).sum()), float("nan")),
        "likeliest": (float(p[by_q[0]]), float(p[by_q[:CHILDREN]].sum())),
        "inverse": (float((guess == said).mean()), float("nan")),
        "coupled, E": _among(q / waits, token),
        "coupled": _among(q * waits**-SHARED, token),
    }


def _among(score: F64, token: NDArray[np.int64]) -> tuple[float, float]:
    """Return the share of rows whose ``token`` has the largest score, and one of the ``CHILDREN`` largest."""
    best = np.argsort(-score, axis=1, kind="stable")[:, :CHILDREN]
    hits = best == token[:, None]
    return float(hits[:, 0].mean()), float(hits.any(axis=1).mean())


def _positions(every: int) -> Iterator[tuple[F32, F32]]:
    bundle = Bundle.open(demo.bundle_path("demo"))
    tokenizer, size = Tokenizer.load(bundle.tokenizer_file), bundle.tokens.size
    stories = [line for line in demo.HELD_OUT.read_text("utf-8").splitlines() if line]
    texts = [tokenizer.encode(story)[: LIMITS.positions] for story in stories]
    for target, draft in zip(rows_of("demo", texts), rows_of("demo-draft", texts), strict=True):
        yield from zip(target[LEAST_PAST::every, :size], draft[LEAST_PAST::every, :size], strict=True)


def measure(
    every: int, draws: int, temperatures: Sequence[float] = TEMPERATURES
) -> dict[str, dict[str, dict[str, float]]]:
    """Return by temperature and rule the share of accepted guesses: ``one``, and of several side by side ``four``."""
    rows, rng = list(_positions(every)), np.random.default_rng(0)
    table: dict[str, dict[str, dict[str, float]]] = {}
    for temperature in temperatures:
        shares: dict[str, list[tuple[float, float]]] = {}
        for target, draft in rows:
            sampler = Sampler(SamplingConfig(temperature=temperature), len(target))
            p, q = (sampler.distribution(row, NO_HISTORY).astype(np.float64) for row in (target, draft))
            raw = np.exp(draft - draft.max()).astype(np.float64)
            for rule, share in accepted(p / p.sum(), q / q.sum(), raw / raw.sum(), rng, draws).items():
                shares.setdefault(rule, []).append(share)
        means = {rule: np.mean(values, axis=0) for rule, values in shares.items()}
        table[str(temperature)] = {
            rule: {"one": float(one)} | ({} if np.isnan(four) else {"four": float(four)})
            for rule, (one, four) in means.items()
        }
    return table


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=5, metavar="N", help="look at every N-th token of the stories")
    parser.add_argument(
        "--draws", type=int, default=32, metavar="N", help="draws of the shared numbers at each of them"
    )
    parser.add_argument(
        "--positions", type=int, default=300, metavar="N", help="positions at which verifiers are compared"
    )
    parser.add_argument("--whole", action="store_true", help="compare verifiers without top-k, top-p and min-p")
    parser.add_argument(
        "--only", choices=("shares", "matched"), help="one of the two tables; the default is both", metavar="TABLE"
    )
    parser.add_argument("--temperatures", type=float, nargs="+", default=TEMPERATURES, metavar="T")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    data: dict[str, object] = {}
    if options.only != "matched":
        data["shares"] = shares = measure(options.every, options.draws, options.temperatures)
        if not options.json:
            _print_shares(shares)
    if options.only != "shares":
        bundle = Bundle.open(padded_bundle(demo.bundle_path()))
        limits = Limits(nodes=32, depth=0, positions=256)
        target = open_target(bundle, limits=limits)
        seconds = matched.pass_seconds(target, limits)
        table = matched.measure(
            options.temperatures, options.positions, seconds, columns=target.info.vocab, whole=options.whole
        )
        data |= {
            "pass_ms": 1000 * seconds,
            "kernel": target.info.kernel,
            "positions": options.positions,
            "nodes": matched.NODES,
        }
        data["matched"] = {
            temperature: {shape: {name: asdict(row) for name, row in rows.items()} for shape, rows in shapes.items()}
            for temperature, shapes in table.items()
        }
        if not options.json:
            _print_matched(table, seconds)
    if options.json:
        print(json.dumps(data))


def _print_shares(table: dict[str, dict[str, dict[str, float]]]) -> None:
    print("share of guesses that are accepted: one guess, and in brackets one of four side by side")
    for temperature, rules in table.items():
        print(f"temperature {temperature}")
        for rule, share in rules.items():
            print(f"  {rule:16}{share['one']:6.3f}" + (f"  ({share['four']:.3f})" if "four" in share else ""))


def _print_matched(table: dict[str, dict[str, dict[str, matched.Figures]]], seconds: float) -> None:
    print(f"tokens per round, and tokens per second if a pass of {matched.NODES} rows takes {1000 * seconds:.1f} ms")
    for temperature, shapes in table.items():
        for shape, rows in shapes.items():
            print(f"temperature {temperature}, {shape}")
            for name, row in rows.items():
                print(
                    f"  {name:10}{row.tokens_per_round:6.2f} +- {row.error:.2f}{row.tokens_per_second:8.1f}"
                    f"  (draft {row.draft_ms:.2f} ms, verify {row.verify_ms:.2f} ms)"
                )


if __name__ == "__main__":
    main()
