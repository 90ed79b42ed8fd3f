"""Measure what policies of keys and values cost and save: recall, perplexity, bytes and speed of the embedded model.

    .venv/bin/python -m benchmarks.memory.kv_policies [-m CALIBRATED ...] [--kinds duo double-sparsity] [--random 3] [--json]

Bundles with the same weights are compared: full (every query attends to all keys), one of each kind of policy, and random
controls of each kind: as many streaming heads, channels of labels, or directions of keys, drawn. A kind of which no -m has
a policy is calibrated first, as `edgedec calibrate-kv -m demo --kind KIND` does, which needs torch. With duo, all heads
streaming is measured, too.

Recall is the share of right greedy answers to a question about a story of a held-out conversation, after three other
questions about it, and with other stories before it: the answer stands 60 to 350 tokens back. Perplexity is that of
held-out stories, one after another in texts of the whole context. Kept bytes are the planned ones of keys, values and
labels. The speed is that of greedy decoding at the end of such a text, measured on this machine with all bundles in turns;
the share of the keys that are read and the bytes read for them are those of its tokens.

`--ranks` compares ranks of the stored keys of shadowkv, and draws them. `--value-rows` compares numbers of values in memory,
for policies that have values in a file; with `--cold`, each answer finds nothing of the file in the system's page cache.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec import demo
from edgedec.bundle.bundle import Bundle
from edgedec.calibrated_bundle import weights_sha256, write_calibrated
from edgedec.cli.console import note, print_table
from edgedec.errors import ToolError, UsageError
from edgedec.families import build_graph
from edgedec.graph.graph import KvState
from edgedec.graph.low_rank import KeyBasis
from edgedec.graph.selection import Selection
from edgedec.host.install_hint import install_extra
from edgedec.kv.policies._selecting import SelectingPolicy
from edgedec.kv.policies.duo import DuoPolicy
from edgedec.kv.policies.nosa import NosaPolicy
from edgedec.kv.policies.shadowkv import ShadowKvPolicy
from edgedec.kv.policy import KvPolicy, policy_kinds, read_policy
from edgedec.memory.byte_sizes import format_bytes
from edgedec.quantize.calibration import cut_windows
from edgedec.quantize.demo_pair.check import is_right
from edgedec.quantize.demo_pair.data import HELD_OUT_SEED
from edgedec.quantize.demo_pair.recall import look_back
from edgedec.quantize.demo_pair.talk import Turn
from edgedec.runtime.measure.perplexity import perplexity
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.session import Session
from edgedec.runtime.targets._cpu import CpuTarget

_SEEDS = HELD_OUT_SEED + (1 << 27)  # the first seed of the conversations, apart from those of calibrations
_GREEDY = SamplingConfig(temperature=0)
_ANSWER_TOKENS, _SPEED_TOKENS, _ROUNDS = 40, 24, 7
OFFLOADING = (NosaPolicy, ShadowKvPolicy)  # policies that keep values in a file
_ASKED = 4  # questions of a conversation, the last of which counts


@dataclass(frozen=True, kw_only=True)
class PolicyFigures:
    """The figures of one policy.

    Members:
        policy: its name.
        kind: its kind; "full" without any.
        streaming_heads: number of heads that see a window only.
        recall: share of right answers, by the number of tokens before the story.
        perplexity: perplexity of held-out stories.
        kv_bytes: planned bytes of keys, values and labels in memory.
        planned_bytes: planned bytes of the whole run.
        keys_share: share of the visible keys to which queries attend at the end of the context; 1 if they choose none.
        read_bytes: bytes of labels, keys and values that a token of the answer reads there; None if queries choose no keys.
        hit_rate: share of these keys that the query before read, too, or of their values that memory had if values are in a
            file; None if queries choose no keys.
        fetched_bytes: bytes that a token of the answer reads from the file of values.
        rank: numbers of a stored key; None if keys are stored as they are.
        tokens_per_second: speed at the end of the context.
    """

    policy: str
    kind: str
    streaming_heads: int
    recall: Mapping[int, float]
    perplexity: float
    kv_bytes: int
    planned_bytes: int
    keys_share: float = 1.0
    read_bytes: float | None = None
    hit_rate: float | None = None
    fetched_bytes: float = 0.0
    rank: int | None = None
    tokens_per_second: float = 0.0


def drawn(policy: DuoPolicy, heads: Mapping[str, int], seed: int) -> DuoPolicy:
    """Return a policy with as many streaming heads, drawn from all ``heads`` (their number by state)."""
    every = [(name, head) for name, count in heads.items() for head in range(count)]
    count = sum(map(len, policy.streaming.values()))
    chosen = {every[at] for at in np.random.default_rng(seed).permutation(len(every))[:count].tolist()}
    return replace(policy, streaming={name: _of(name, size, chosen) for name, size in heads.items()})


def _of(name: str, count: int, chosen: set[tuple[str, int]]) -> tuple[int, ...]:
    return tuple(head for head in range(count) if (name, head) in chosen)


def drawn_selections(own: Mapping[str, Selection], heads: Mapping[str, KvState], seed: int) -> dict[str, Selection]:
    """Return selections with as many channels in each label, drawn, and importance in a drawn order of dimensions."""
    rng = np.random.default_rng(seed)
    selections = {}
    for name, selection in own.items():
        width, size = len(selection.channels[0]), heads[name].head_dim
        channels = [np.sort(rng.permutation(size)[:width]).tolist() for _ in selection.channels]
        # The largest step of a head leaves few codes of other channels out of range.
        steps = [(max(step),) * width for step in selection.steps]
        order: list[int] = (1 + rng.permutation(size)).tolist()
        lists: dict[str, Any] = {
            "channels": tuple(map(tuple, channels)),
            "steps": tuple(steps),
            "importance": tuple(tuple(row[at] for at in (0, *order)) for row in selection.importance),
        }
        selections[name] = replace(selection, **lists)
    return selections


def drawn_bases(own: Mapping[str, KeyBasis], heads: Mapping[str, KvState], seed: int) -> dict[str, KeyBasis]:
    """Return bases of as many orthogonal directions, drawn."""
    rng = np.random.default_rng(seed)
    sizes = {name: (heads[name].kv_heads, heads[name].head_dim, basis.rank) for name, basis in own.items()}
    drawn = {name: np.linalg.qr(rng.normal(size=size))[0].transpose(0, 2, 1) for name, size in sizes.items()}
    return {name: KeyBasis.of(directions) for name, directions in drawn.items()}


def policies(bundle: Bundle, made: Mapping[str, KvPolicy], random: int) -> dict[str, KvPolicy | None]:
    """Return the policies by name: no policy, those that were ``made``, and random controls of each."""
    states = build_graph(bundle.config).states
    heads = {state.name: state.kv_heads for state in states.values()}
    everything = {name: tuple(range(count)) for name, count in heads.items()}
    found: dict[str, KvPolicy | None] = {"full": None}
    for label, policy in made.items():
        found[label] = policy
        for seed in range(random):
            name = f"{label}, random {seed}"
            if isinstance(policy, DuoPolicy):
                found[name] = drawn(policy, heads, seed)
            elif isinstance(policy, ShadowKvPolicy):
                found[name] = replace(policy, bases=drawn_bases(policy.bases, states, seed))
            elif isinstance(policy, SelectingPolicy):
                found[name] = replace(policy, selections=drawn_selections(policy.selections, states, seed))
        if isinstance(policy, DuoPolicy):
            found["streaming"] = replace(policy, streaming=everything)
    return found


def _messages(turns: Sequence[Turn]) -> list[dict[str, str]]:
    said = [text for turn in turns for text in turn]
    return [{"role": "assistant" if at % 2 else "user", "content": text} for at, text in enumerate(said)]


def recall(session: Session, count: int, history: int) -> float:
    """Return the share of right answers to the last question of held-out conversations.

    Args:
        session: the model.
        count: number of conversations, one question each.
        history: least number of tokens before the story that is asked about.
    """

    def enough(turns: Sequence[Turn]) -> bool:
        return (len(session.encode_chat(_messages(turns))) if turns else 0) >= history

    right = 0
    for number in range(count):
        talk = look_back(_SEEDS + number, enough)
        *before, question = talk.questions[-_ASKED:]
        turns = [*talk.turns, *((one.question, one.answer) for one in before)]
        ids = session.encode_chat([*_messages(turns), {"role": "user", "content": question.question}])
        answer = session.generate(ids, n_predict=_ANSWER_TOKENS, sampling=_GREEDY)
        right += is_right(answer.text.strip(), question)
    return right / count


def _opened(path: Path, options: argparse.Namespace, value_rows: int | None = None) -> Session:
    sizes: dict[str, Any] = {"ctx_size": options.ctx_size, "threads": options.threads, "kv_bits": 16}
    return Session.open(path, value_rows=value_rows, **sizes)


def _texts(session: Session, options: argparse.Namespace) -> list[NDArray[np.int32]]:
    ids = session.tokenizer.encode(demo.HELD_OUT.read_text("utf-8"))
    return cut_windows(ids, length=options.ctx_size, bos=session.bundle.tokens.bos)[: options.windows]


def measure(path: Path, name: str, policy: KvPolicy | None, options: argparse.Namespace) -> PolicyFigures:
    """Measure one bundle, apart from its speed."""
    with _opened(path, options) as session:
        texts, limit = _texts(session, options), session.bundle.tokens.size
        score = perplexity(session.target, session.run.limits, texts, vocab_limit=limit)
        asked = [history for history in options.history if history < options.ctx_size * 7 // 8]
        items = session.run.plan.items
        return PolicyFigures(
            policy=name,
            kind="full" if policy is None else policy.kind,
            streaming_heads=sum(map(len, policy.streaming.values())) if isinstance(policy, DuoPolicy) else 0,
            recall={history: recall(session, options.questions, history) for history in asked},
            perplexity=score.perplexity,
            kv_bytes=sum(items.get(name, 0) for name in ("kv", "kv_ring", "kv_labels", "kv_value_rows")),
            planned_bytes=session.run.plan.total_bytes,
            rank=rank_of(policy),
        )


def drop_pages(session: Session) -> None:
    """Let the next text read the values that memory does not have from the disk, as where the system has no free memory."""
    file = session.target.values_file if isinstance(session.target, CpuTarget) else None
    if file is not None:
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)


def speeds(
    paths: Mapping[str, Path], options: argparse.Namespace, value_rows: Mapping[str, int] | None = None
) -> dict[str, dict[str, Any]]:
    """Return the figures of greedy decoding at the end of a text, in rounds in turns, of which speeds are medians.

    An answer is shorter than the rows that a ring keeps for going back, so the text is read once. ``value_rows`` has numbers
    of rows of values in memory, by name, for those that do not have the usual one.
    """
    rows_of = value_rows or {}
    rates: dict[str, list[float]] = {name: [] for name in paths}
    figures = dict[str, dict[str, Any]]()
    with ExitStack() as stack:
        sessions = {
            name: stack.enter_context(_opened(path, options, rows_of.get(name))) for name, path in paths.items()
        }
        for _ in range(1 + _ROUNDS):
            for name, session in sessions.items():
                prompt = _texts(session, options)[0][: options.ctx_size - 2 * _SPEED_TOKENS]
                if options.cold:
                    drop_pages(session)
                answer = session.generate(prompt, n_predict=_SPEED_TOKENS, sampling=_GREEDY, ignore_eos=True)
                rates[name].append(answer.timings.predicted_per_second)
                keys, rows = answer.timings.keys, answer.timings.prompt_n - answer.timings.prompt_kept + _SPEED_TOKENS
                if keys is not None:
                    figures[name] = {"keys_share": keys.share, "read_bytes": keys.read_bytes / rows}
                    figures[name] |= {"hit_rate": keys.hit_rate, "fetched_bytes": keys.fetched_bytes / rows}
    return {  # without the round that read the text
        name: {"tokens_per_second": statistics.median(own[1:]), **figures.get(name, {})} for name, own in rates.items()
    }


def calibrated(path: Path) -> KvPolicy:
    """Return the policy of a bundle.

    Raises:
        UsageError: the bundle has none, or its weights are not those of the embedded model.
    """
    policy = read_policy(Bundle.open(path).config)
    if policy is None:
        raise UsageError(f"{path}: has no policy; make one with: edgedec calibrate-kv -m demo --kind KIND -o NAME")
    if policy.weights_sha256 != weights_sha256(Bundle.open(demo.bundle_path())):
        raise UsageError(f"{path}: was made from another model than demo")
    return policy


def calibrate(kind: str, output: Path, options: argparse.Namespace) -> None:
    """Calibrate the embedded model."""
    bundle = Bundle.open(demo.bundle_path())
    if kind == "duo":
        from edgedec.quantize.kv_calibration.duo import DuoOptions, calibrate_duo

        calibrate_duo(bundle, output, DuoOptions(share=0.25))
        return
    from edgedec.quantize.kv_calibration.double_sparsity import SelectionOptions, calibrate_double_sparsity
    from edgedec.quantize.kv_calibration.nosa import calibrate_nosa
    from edgedec.quantize.kv_calibration.shadowkv import calibrate_shadowkv

    chosen = SelectionOptions(keys=options.keys, channels=options.channels, label_bits=options.label_bits)
    calibrations: dict[str, Any] = {"nosa": calibrate_nosa, "shadowkv": calibrate_shadowkv}
    calibrations.get(kind, calibrate_double_sparsity)(bundle, output, chosen)


def made_policies(options: argparse.Namespace, folder: Path) -> dict[str, KvPolicy]:
    """Return a policy of each kind by its name, those of bundles that were named, and others from a calibration.

    With ``--ranks``, there is one of ShadowKV for each.
    """
    named = {policy.kind: policy for policy in map(calibrated, options.model or ())}
    for kind in options.kinds:
        if kind not in named:
            note(f"calibrating {kind}")
            calibrate(kind, folder / kind, options)
            named[kind] = calibrated(folder / kind)
    made = {kind: named[kind] for kind in options.kinds}
    plain = made.get(ShadowKvPolicy.kind)
    if options.ranks and isinstance(plain, ShadowKvPolicy):
        from edgedec.quantize.kv_calibration.shadowkv import key_bases, key_moments

        note("measuring keys")
        moments = key_moments(Bundle.open(demo.bundle_path()))
        del made[plain.kind]
        for rank in options.ranks:
            made[f"{plain.kind}, rank {rank}"] = replace(plain, bases=key_bases(moments, rank)[0])
    return made


def rank_of(policy: KvPolicy | None) -> int | None:
    """Return the numbers of a stored key; None if keys are stored as they are."""
    return next(iter(policy.bases.values())).rank if isinstance(policy, ShadowKvPolicy) else None


def plot_ranks(rows: Sequence[PolicyFigures], file: Path) -> None:
    """Draw perplexity and recall of calibrated policies against the rank of keys.

    Raises:
        ToolError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ToolError(f"a picture needs matplotlib; run: {install_extra('train')}") from error
    calibrated_rows = [row for row in rows if row.rank is not None and "random" not in row.policy]
    ranked = sorted(calibrated_rows, key=lambda row: row.rank or 0)
    full = next(row for row in rows if row.kind == "full")
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    ranks = [row.rank or 0 for row in ranked]
    left.plot(ranks, [row.perplexity / full.perplexity for row in ranked], "o-")
    left.set(xlabel="rank", ylabel="perplexity, relative to all keys")
    for history in full.recall:
        right.plot(ranks, [100 * row.recall[history] for row in ranked], "o-", label=f"after {history} tokens")
        right.axhline(100 * full.recall[history], linestyle=":", color="gray")
    right.set(xlabel="rank", ylabel="right answers, %", ylim=(0, 105))
    right.legend()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "-m",
        "--model",
        type=Path,
        action="append",
        help="a calibrated bundle of the embedded model; repeat it for kinds",
    )
    parser.add_argument("--kinds", nargs="*", default=policy_kinds(), choices=policy_kinds(), help="kinds of policies")
    parser.add_argument("--ctx-size", type=int, default=4096, help="tokens of the context")
    parser.add_argument("--history", type=int, nargs="*", default=[0, 2500], help="tokens before the story")
    parser.add_argument("--questions", type=int, default=100, help="questions for each history")
    parser.add_argument("--windows", type=int, default=2, help="texts of the perplexity")
    parser.add_argument("--random", type=int, default=3, help="random controls of each kind")
    parser.add_argument("--keys", type=int, help="keys of a query; default: a 16th of the context")
    parser.add_argument("--channels", type=int, help="channels of a label; default: an eighth of the head's")
    parser.add_argument("--label-bits", type=int, default=4, help="bits of a channel in a label")
    parser.add_argument("--ranks", type=int, nargs="*", default=[], help="ranks of the keys of shadowkv to compare")
    parser.add_argument("--plot", type=Path, default=Path("build/kv_ranks.png"), help="picture of --ranks")
    parser.add_argument("--value-rows", type=int, nargs="*", default=[], help="rows of values in memory to compare")
    parser.add_argument(
        "--cold", action="store_true", help="empty the page cache of the file of values before each answer"
    )
    parser.add_argument("-t", "--threads", type=int, default=0, help="threads; 0: one for each core")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON on stdout")
    return parser.parse_args()


def main() -> None:
    options = _arguments()
    with tempfile.TemporaryDirectory(prefix="edgedec-kv-") as name:
        folder, bundle = Path(name), Bundle.open(demo.bundle_path())
        made = made_policies(options, folder)
        paths, rows = dict[str, Path](), list[PolicyFigures]()
        for label, kind in policies(bundle, made, options.random).items():
            paths[label] = bundle.path if kind is None else folder / label
            if kind is not None:
                write_calibrated(bundle, paths[label], kind)
            note(f"measuring {label}")
            rows.append(measure(paths[label], label, kind, options))
        rates = speeds(paths, options)
        filed = [label for label in paths if isinstance(read_policy(Bundle.open(paths[label]).config), OFFLOADING)]
        counts = {f"{label}, {count} rows": (paths[label], count) for label in filed for count in options.value_rows}
        by_rows = speeds(
            {name: path for name, (path, _) in counts.items()},
            options,
            {name: count for name, (_, count) in counts.items()},
        )
    rows = [replace(row, **rates[row.policy]) for row in rows]
    if options.ranks:
        plot_ranks(rows, options.plot)
        note(f"drawn: {options.plot}")
    if options.json:
        entries = [policy.to_json() for policy in made.values()]
        data = {"ctx_size": options.ctx_size, "policies": entries, "runs": [_json(row) for row in rows]}
        print(json.dumps(data | {"value_rows": by_rows}))
        return
    heads = ["policy", *(f"recall after {history}" for history in rows[0].recall), "perplexity"]
    print_table(
        [
            [*heads, "keys and values", "plan", "keys read", "bytes read", "hits", "from the file", "tokens/s"],
            *(
                [
                    row.policy,
                    *(f"{100 * share:.0f} %" for share in row.recall.values()),
                    f"{row.perplexity:.3f}",
                    format_bytes(row.kv_bytes),
                    format_bytes(row.planned_bytes),
                    f"{100 * row.keys_share:.1f} %",
                    "" if row.read_bytes is None else format_bytes(round(row.read_bytes)),
                    "" if row.hit_rate is None else f"{100 * row.hit_rate:.0f} %",
                    format_bytes(round(row.fetched_bytes)) if row.fetched_bytes else "",
                    f"{row.tokens_per_second:.0f}",
                ]
                for row in rows
            ),
        ]
    )
    if by_rows:
        print_table(
            [
                ["rows of values in memory", "hits", "from the file", "tokens/s"],
                *(
                    [
                        name,
                        f"{100 * figures['hit_rate']:.1f} %",
                        format_bytes(round(figures["fetched_bytes"])),
                        f"{figures['tokens_per_second']:.0f}",
                    ]
                    for name, figures in by_rows.items()
                ),
            ]
        )


def _json(row: PolicyFigures) -> dict[str, Any]:
    return {**vars(row), "recall": {str(history): share for history, share in row.recall.items()}}


if __name__ == "__main__":
    main()
