"""Compare the windows of ``--decoder switch``: the large model's agreement at equal shares of tokens by the small one.

    .venv/bin/python -m benchmarks.speculation.switch_window [--stories 20] [--tokens 150] [--temp 0.8] [--json]

The embedded pair continues held-out stories. For each window the threshold is searched that lets the small model write the
requested share of the tokens, by bisection and interpolation; a threshold means something else for each window, so equal
thresholds cannot be compared. The agreement at the share itself is interpolated between the nearest measured shares.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np

from edgedec import demo
from edgedec.cli.console import print_table
from edgedec.errors import UsageError
from edgedec.runtime.decoders.switch import SwitchConfig, SwitchDecoder
from edgedec.runtime.planning.speculation import SpecConfig
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.session import Session

__all__ = ["AtShare", "at_share", "measure"]

OPENING_WORDS = 8
FIRST_THRESHOLDS = (1.0, 2.0, 3.0, 4.0, 6.0)  # bits
NEAR = 0.02  # distance of shares that need no further threshold
_STEPS = 3  # further thresholds for a share, at most


@dataclass(frozen=True, kw_only=True)
class SwitchPoint:
    """One threshold in bits: the share of the small model's tokens, and the agreement over ``compared`` of them."""

    entropy: float
    share: float
    agreement: float
    compared: int


@dataclass(frozen=True, kw_only=True)
class AtShare:
    """A window at a share of the small model's tokens.

    Members:
        window: number of distributions in the mean.
        share: share of tokens that the small model writes.
        entropy, agreement: threshold in bits and agreement, interpolated between two measured thresholds.
        standard_error: standard error of the agreement, for independent tokens.
    """

    window: int
    share: float
    entropy: float
    agreement: float
    standard_error: float


def at_share(
    window: int, share: float, points: dict[float, SwitchPoint], run: Callable[[float], SwitchPoint]
) -> AtShare:
    """Return what a window gives at a share, and add the thresholds that ``run`` measures for it to ``points``.

    Raises:
        UsageError: no threshold gives so large or so small a share.
    """
    for _ in range(_STEPS + 1):
        known = sorted(points.values(), key=lambda point: point.share)
        below = [point for point in known if point.share <= share and point.compared]
        above = [point for point in known if point.share >= share and point.compared]
        if not below or not above:
            raise UsageError(f"no threshold gives a share of {share} at a window of {window}; choose another --shares")
        low, high = below[-1], above[0]
        weight = (share - low.share) / (high.share - low.share) if high.share > low.share else 0.0
        entropy = low.entropy + weight * (high.entropy - low.entropy)
        if high.share - low.share <= NEAR or entropy in points:
            break
        points[entropy] = run(entropy)
    agreement = low.agreement + weight * (high.agreement - low.agreement)
    count = min(low.compared, high.compared)
    return AtShare(
        window=window,
        share=share,
        entropy=entropy,
        agreement=agreement,
        standard_error=float(np.sqrt(agreement * (1 - agreement) / count)),
    )


def measure(
    windows: Sequence[int], shares: Sequence[float], *, stories: int, tokens: int, temperature: float, threads: int
) -> list[AtShare]:
    """Return each window at each share."""
    texts = [line for line in demo.HELD_OUT.read_text("utf-8").splitlines() if line][:stories]
    spec = SpecConfig(drafter="model", draft=demo.bundle_path("demo-draft"), decoder="switch")
    results = []
    with Session.open(demo.bundle_path(), ctx_size=512, spec=spec, threads=threads) as session:
        decoder = session.decoder
        assert isinstance(decoder, SwitchDecoder)

        def run(window: int, entropy: float) -> SwitchPoint:
            decoder.config = SwitchConfig(entropy=entropy, window=window)
            small = large = compared = agreed = 0
            for seed, story in enumerate(texts):
                session.generate(
                    " ".join(story.split()[:OPENING_WORDS]),
                    n_predict=tokens,
                    sampling=SamplingConfig(temperature=temperature, seed=seed),
                )
                counts = decoder.counts
                small, large = small + counts.small_tokens, large + counts.large_tokens
                compared, agreed = compared + counts.compared, agreed + counts.agreed
            return SwitchPoint(
                entropy=entropy, share=small / (small + large), agreement=agreed / max(1, compared), compared=compared
            )

        for window in windows:
            points = {entropy: run(window, entropy) for entropy in FIRST_THRESHOLDS}
            results += [at_share(window, share, points, partial(run, window)) for share in shares]
    return results


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--shares", type=float, nargs="+", default=[0.65, 0.75, 0.85])
    parser.add_argument("--stories", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=150)
    parser.add_argument("--temp", type=float, default=0.8)
    parser.add_argument("-t", "--threads", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    results = measure(
        args.windows,
        args.shares,
        stories=args.stories,
        tokens=args.tokens,
        temperature=args.temp,
        threads=args.threads,
    )
    if args.json:
        print(json.dumps([asdict(result) for result in results], indent=2))
        return
    rows = [("window", "share", "threshold, bits", "agreement", "standard error")]
    for result in results:
        rows.append(
            (
                str(result.window),
                f"{result.share:.2f}",
                f"{result.entropy:.2f}",
                f"{100 * result.agreement:.1f} %",
                f"{100 * result.standard_error:.1f} %",
            )
        )
    print_table(rows, right=range(5))


if __name__ == "__main__":
    main()
