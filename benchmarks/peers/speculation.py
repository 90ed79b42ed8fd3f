"""Measure other programs that speculate, with the same shape and the same prompts as the speculation benchmark.

llama.cpp runs the padded model as TQ2_0, onnxruntime-genai as an ONNX graph with 2-bit matrices. Both quantize activations
differently from edgedec, so a text may differ from edgedec's after a near tie; the number of such texts is reported. For
each prompt the texts are written in turns: plain, each drafter, plain again. Reading the prompt is not timed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.peers.genai_speculation import open_genai
from benchmarks.peers.llama_speculation import open_llama
from benchmarks.peers.text_writer import Peer, PeerText
from benchmarks.speculation.padded_model import PromptTask, padded_bundle
from edgedec import demo
from edgedec.bundle.bundle import Bundle
from edgedec.cli.console import print_table
from edgedec.errors import EdgedecError
from edgedec.progress import Progress, silent

__all__ = ["PeerTake", "print_peers", "run_peers", "summarize_peer"]

_OPENERS: Mapping[str, Callable[..., Peer]] = {"llama.cpp": open_llama, "onnxruntime-genai": open_genai}
NOT_RUN = "not run"


@dataclass(frozen=True, kw_only=True)
class PeerTake:
    """Texts of one prompt: the peer's plain texts before and after the drafters', and edgedec's text."""

    kind: str
    expected: tuple[int, ...]
    plain: tuple[PeerText, ...]
    drafters: Mapping[str, PeerText]

    @property
    def plain_tok_s(self) -> float:
        return sum(len(text.tokens) for text in self.plain) / sum(text.seconds for text in self.plain)


def run_peers(
    tasks: Sequence[PromptTask], *, tokens: int, threads: int, draft_max: int, progress: Progress = silent
) -> dict[str, Any]:
    """Return {peer: {version, kinds{NAME{plain_tok_s, drafters{NAME{tok_s, speedup, acceptance}}}}}}, and a few more keys.

    If a peer cannot be built or run, its entry is {"not run": reason} and the others are still measured.

    Args:
        tokens: limit on the tokens of each text; texts also end at an end-of-text token.
        draft_max: limit on the proposals of a round, unless a peer runs with its default settings.

    Raises:
        EdgedecError: the embedded models are damaged, or cannot be padded.
    """
    draft = Bundle.open(demo.bundle_path("demo-draft"))
    target = Bundle.open(padded_bundle(demo.bundle_path(), progress))
    longest = max(len(task.ids) for task in tasks) + tokens + draft_max + 1
    positions = min(target.config["max_position_embeddings"], -(-longest // 256) * 256)
    results: dict[str, Any] = {}
    for name, open_peer in _OPENERS.items():
        try:
            peer = open_peer(
                target, draft, threads=threads, draft_max=draft_max, positions=positions, progress=progress
            )
            takes = []
            with peer.writer:
                for at, task in enumerate(tasks):
                    progress(f"{name}: {task.kind}", at, len(tasks))
                    takes.append(_take(peer, task, tokens))
            results[name] = {**peer.details, "threads": threads, **summarize_peer(takes)}
        except EdgedecError as error:
            results[name] = {NOT_RUN: str(error)}
    return results


def _take(peer: Peer, task: PromptTask, tokens: int) -> PeerTake:
    peer.writer.read(task.ids.tolist())
    first = peer.writer.write(peer.plain, tokens)
    drafters = {name: peer.writer.write(how, tokens) for name, how in peer.drafters.items()}
    plain = (first, peer.writer.write(peer.plain, tokens))
    return PeerTake(kind=task.kind, expected=task.expected[:tokens], plain=plain, drafters=drafters)


def summarize_peer(takes: Sequence[PeerTake]) -> dict[str, Any]:
    """Return medians over the prompts of a kind, and the acceptance over all proposals of a kind (None without proposals).

    ``same_text`` is the share of prompts for which the peer's plain text equals edgedec's, and ``same_as_plain`` the share
    of texts with a drafter that equal the peer's own plain text.
    """
    kinds = dict.fromkeys(take.kind for take in takes)
    texts = [(text, take.plain[0]) for take in takes for text in take.drafters.values()]
    return {
        "kinds": {kind: _kind([take for take in takes if take.kind == kind]) for kind in kinds},
        "prompts": len(takes),
        "same_text": _share([take.plain[0].tokens == take.expected for take in takes]),
        "same_as_plain": _share([text.tokens == plain.tokens for text, plain in texts]),
    }


def _share(these: Sequence[bool]) -> float | None:
    return sum(these) / len(these) if these else None


def _kind(takes: Sequence[PeerTake]) -> dict[str, Any]:
    drafters = {name: _drafter([(take, take.drafters[name]) for take in takes]) for name in takes[0].drafters}
    return {
        "prompts": len(takes),
        "plain_tok_s": median(take.plain_tok_s for take in takes),
        "best": max(drafters, key=lambda name: drafters[name]["speedup"], default="none"),
        "drafters": drafters,
    }


def _drafter(texts: Sequence[tuple[PeerTake, PeerText]]) -> dict[str, Any]:
    drafted = sum(text.drafted for _, text in texts)
    return {
        "tok_s": median(text.tok_s for _, text in texts),
        "speedup": median(text.tok_s / take.plain_tok_s for take, text in texts),
        "acceptance": sum(text.accepted for _, text in texts) / drafted if drafted else None,
        "tokens_per_round": sum(len(text.tokens) for _, text in texts) / sum(text.rounds for _, text in texts),
        "draft_ms_per_round": 1e3 * sum(t.draft_seconds for _, t in texts) / sum(t.rounds for _, t in texts),
    }


def print_peers(result: Mapping[str, Any]) -> None:
    """Print a table of the figures of ``run_peers`` for each peer."""
    for name, peer in result.items():
        if NOT_RUN in peer:
            print(f"\npeer     {name} was not run: {peer[NOT_RUN]}")
            continue
        print(f"\npeer     {name}: {peer['version']}, {peer['model']}, {peer['weight_bytes'] / 1e6:.0f} MB")
        print(f"         {peer['prompts']} prompts, {peer['threads']} threads; ", end="")
        print(f"edgedec's text after {_percent(peer['same_text'])} of them, ", end="")
        print(f"speculation left its plain text as it was in {_percent(peer['same_as_plain'])}")
        rows = [("kind", "drafter", "tok/s", "speed-up", "accepted", "tok/round", "draft ms/round", "")]
        for kind, figures in peer["kinds"].items():
            rows.append((kind, "plain", f"{figures['plain_tok_s']:.1f}", "1.00", "-", "1.00", "-", ""))
            for drafter, one in figures["drafters"].items():
                rows.append(
                    (
                        "",
                        drafter,
                        f"{one['tok_s']:.1f}",
                        f"{one['speedup']:.2f}",
                        _percent(one["acceptance"]),
                        f"{one['tokens_per_round']:.2f}",
                        f"{one['draft_ms_per_round']:.2f}",
                        "best" if drafter == figures["best"] else "",
                    )
                )
        print_table(rows, right=(2, 3, 4, 5, 6))


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"
