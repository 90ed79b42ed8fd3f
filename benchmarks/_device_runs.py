"""Texts of the embedded model, written again by drafters and policies at the cost of a device and of a board's host."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks._device_clock import Books, Clock, Fabric, HostCosts, board_time
from benchmarks._device_cost import Device
from benchmarks._device_target import DeviceTarget, DraftTarget, Said, WatchedDrafter, WatchedPolicy, read
from benchmarks._speculation_model import Task
from edgedec.bundle import Bundle
from edgedec.errors import DeviceError
from edgedec.plugins import load
from edgedec.runtime.decoders import open_decoder
from edgedec.runtime.decoders.autoregressive import AutoregressiveDecoder
from edgedec.runtime.drafters import model
from edgedec.runtime.protocols import Drafter, Limits, Request, Target, TargetInfo, TreePolicy
from edgedec.runtime.sampling import Sampler, SamplingConfig
from edgedec.runtime.session import Session
from edgedec.runtime.speculation import POLICIES, create_drafter, create_policy, create_verifier

__all__ = ["BEYOND", "Host", "Method", "Script", "Text", "Writer", "script"]

BEYOND = 10  # tokens that are known behind a text's end: the last tree may reach there


@dataclass(frozen=True, kw_only=True)
class Method:
    """How a text is written. ``name``: of a drafter; ``fabric``: its draft model runs on the accelerator."""

    name: str
    policy: str = "hardware"
    fabric: bool = False

    @property
    def label(self) -> str:
        return f"{self.name} (fabric)" if self.fabric else self.name


@dataclass(frozen=True, kw_only=True)
class Host:
    """The board's processor.

    Members:
        factor: times that it takes longer than this machine.
        overlaps: it drafts during passes.
        keeps: one session writes all texts.
    """

    factor: float
    overlaps: bool = False
    keeps: bool = False
    costs: HostCosts | None = None  # None: measure, and take no time


@dataclass(frozen=True, kw_only=True)
class Script:
    """A prompt, ``tokens`` of the text after it, and what was said on the way."""

    kind: str
    source: str
    prompt: int
    tokens: int
    said: Said


@dataclass(frozen=True, kw_only=True)
class Text:
    """One text, written. ``seconds``: on the board, from the first round's beginning to the end of the last token's round;
    of these the device was at work for ``device_seconds`` in passes and ``commit_seconds`` in commits. ``host``: by kind of
    work.
    """

    kind: str
    source: str
    tokens: int
    seconds: float
    rows: tuple[int, ...]
    accepted: int
    device_seconds: float
    commit_seconds: float
    host: Mapping[str, float]
    ahead: int
    ahead_used: int


def script(session: Session, task: Task, tokens: int) -> Script:
    """The task's text, and what the model says after each of its tokens, from passes over all of it.

    Raises:
        DeviceError: passes over many tokens say something else than those in which the text was written.
    """
    beyond = session.generate(
        task.ids, n_predict=tokens + BEYOND, sampling=SamplingConfig(temperature=0), ignore_eos=True
    )
    ids = np.array([*task.ids, *beyond.tokens], np.int32)
    state = session.target.open(session.run.limits)
    first = len(task.ids) - 1
    logits = read(session.target, state, ids, session.run.limits.nodes)[first:]
    state.close()
    said = logits[:-1, : session.bundle.tokens.size].argmax(axis=1)
    if said.tolist() != ids[first + 1 :].tolist() or not _agree(beyond.tokens, task.expected):
        raise DeviceError(f"{task.source}: the model did not say twice the same; this is a bug in edgedec")
    return Script(
        kind=task.kind,
        source=task.source,
        prompt=len(task.ids),
        tokens=min(tokens, len(task.expected)),
        said=Said(text=ids, first=first, logits=logits),
    )


def _agree(one: Sequence[int], other: Sequence[int]) -> bool:
    """As far as the shorter one goes."""
    return all(mine == theirs for mine, theirs in zip(one, other, strict=False))


class Writer:
    """Writes scripts.

    Parameters:
        info, words: of the embedded model, and how many ids its tokenizer has.
        draft: the embedded draft.
        vocab: words of the larger model.
        cpu: makes the embedded model's own target, to run every pass; None: what it said is known.
    """

    def __init__(
        self,
        info: TargetInfo,
        draft: Bundle,
        device: Device,
        *,
        vocab: int,
        cpu: Callable[[Limits], Target] | None = None,
    ) -> None:
        self._info, self._draft, self._device, self._vocab = info, draft, device, vocab
        config = device.config
        self._limits = Limits(nodes=config.slots, depth=config.slots - 1, positions=config.context)
        self._cpu = None if cpu is None else cpu(self._limits)

    def write(self, scripts: Sequence[Script], method: Method, host: Host) -> tuple[list[Text], Books]:
        """One after the other: each by a decoder of its own, or all by one, which keeps what its draft has learned.

        Raises:
            DeviceError: another text came out.
        """
        clock = Clock()
        books, fabric = Books(clock=clock, costs=host.costs, factor=host.factor), Fabric(clock)
        limits = replace(self._limits, depth=0) if method.name == "none" else self._limits
        texts, decoder = list[Text](), None
        drafter = self._drafter(method.name, books)
        with board_time(clock), self._draft_passes(books, fabric, fabric_drafts=method.fabric):
            for one in scripts:
                target = DeviceTarget(self._info, self._vocab, one.said, self._device, fabric, books, inner=self._cpu)
                if decoder is None or not host.keeps:
                    decoder = self._decoder(target, drafter, method, host, books, limits)
                    policy = WatchedPolicy(_policy(method.policy, books.clock), method.policy, books)
                texts.append(self._written(one, decoder, policy, target, books, limits))
        return texts, books

    def _decoder(
        self, target: DeviceTarget, drafter: Drafter, method: Method, host: Host, books: Books, limits: Limits
    ) -> AutoregressiveDecoder:
        return open_decoder(
            target,
            target.open(limits),
            drafter=WatchedDrafter(drafter, method.name, books),
            vocab_limit=self._vocab,
            overlaps=host.overlaps and not method.fabric,
        )

    def _drafter(self, name: str, books: Books) -> Drafter:
        made = create_drafter(name, self._draft if name in ("model", "auto") else None, threads=1)
        candidates: Any = getattr(made, "_drafters", None)  # of ``auto``: each one's work is its own
        for inner in candidates or ():
            candidates[inner] = WatchedDrafter(candidates[inner], inner, books, asked=False)
        return made

    @contextmanager
    def _draft_passes(self, books: Books, fabric: Fabric, *, fabric_drafts: bool) -> Iterator[None]:
        """Passes of a draft model are the host's work, or the accelerator's."""
        module: Any = model
        before, curve = module.open_target, self._device.draft if fabric_drafts else None
        module.open_target = lambda *args, **options: DraftTarget(before(*args, **options), books, fabric, curve)
        try:
            yield
        finally:
            module.open_target = before

    def _written(
        self,
        one: Script,
        decoder: AutoregressiveDecoder,
        policy: TreePolicy,
        target: DeviceTarget,
        books: Books,
        limits: Limits,
    ) -> Text:
        prompt = one.said.text[: one.prompt]
        decoder.target, decoder.state = target, target.open(limits)
        decoder.cached = prompt[:-1].tolist()
        decoder.open_draft(limits)
        began, spent, tokens = books.clock.now, dict(books.spent), list[int]()
        request = Request(
            prompt=prompt,
            limits=limits,
            processor=Sampler(SamplingConfig(temperature=0), self._vocab).distribution,
            policy=policy,
            verifier=create_verifier(0),
            rng=np.random.default_rng(0),
            top_k=self._device.config.top_k,  # enough for greedy texts, as a session asks for
        )
        for token in decoder.generate(request):
            tokens.append(token.id)
            if len(tokens) == one.tokens:
                break
        if tokens != one.said.text[one.prompt :][: one.tokens].tolist():
            raise DeviceError(f"{one.source}: another text came out; this is a bug in edgedec")
        rounds = decoder.rounds
        return Text(
            kind=one.kind,
            source=one.source,
            tokens=len(tokens),
            seconds=books.clock.now - began - rounds.read_seconds,
            rows=tuple(target.rows),
            accepted=sum(rounds.accepted),
            device_seconds=target.device_seconds,
            commit_seconds=target.commit_seconds,
            host={kind: seconds - spent.get(kind, 0.0) for kind, seconds in books.spent.items()},
            ahead=rounds.ahead,
            ahead_used=rounds.ahead_used,
        )


def _policy(name: str, clock: Clock) -> TreePolicy:
    if name != "hardware":
        return create_policy(name)
    made: TreePolicy = load(POLICIES, name).create(None, clock.perf_counter)  # it looks at the clock
    return made


def kinds(texts: Sequence[Text]) -> list[str]:
    """In their order."""
    return list(dict.fromkeys(text.kind for text in texts))
