"""Write texts of the embedded model again with drafters and policies, at the cost of a device and of a board's host."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.accelerator.device_clock import BoardClock, Books, Fabric, HostCosts, board_time
from benchmarks.accelerator.device_cost import DeviceCosts
from benchmarks.accelerator.device_target import BookedDrafter, BookedPolicy, DeviceTarget, DraftTarget, Said, read
from benchmarks.speculation.padded_model import PromptTask
from edgedec.bundle.bundle import Bundle
from edgedec.errors import DeviceError
from edgedec.plugins import load
from edgedec.runtime.decoders.autoregressive import AutoregressiveDecoder, open_decoder
from edgedec.runtime.drafters import model
from edgedec.runtime.planning.speculation import POLICIES, create_drafter, create_policy, create_verifier
from edgedec.runtime.protocols import Drafter, Limits, Request, Target, TargetInfo, TreePolicy
from edgedec.runtime.sampling.position_random import PositionRandom
from edgedec.runtime.sampling.sampling import Sampler, SamplingConfig
from edgedec.runtime.session.session import Session

__all__ = ["BEYOND", "BoardHost", "Method", "Script", "ScriptWriter", "Text", "script"]

BEYOND = 10  # tokens that are known after the end of a text, because the last tree may extend beyond the end


@dataclass(frozen=True, kw_only=True)
class Method:
    """A way to write a text: drafter ``name`` and ``policy``. ``fabric``: the draft model runs on the accelerator."""

    name: str
    policy: str = "hardware"
    fabric: bool = False

    @property
    def label(self) -> str:
        return f"{self.name} (fabric)" if self.fabric else self.name


@dataclass(frozen=True, kw_only=True)
class BoardHost:
    """The board's processor.

    Members:
        costs: times of its work.
        keeps: one session writes all texts.
    """

    costs: HostCosts
    keeps: bool = False


@dataclass(frozen=True, kw_only=True)
class Script:
    """A text to write: a prompt of ``prompt`` tokens, ``tokens`` tokens after it, and the model's logits at each of them."""

    kind: str
    source: str
    prompt: int
    tokens: int
    said: Said


@dataclass(frozen=True, kw_only=True)
class Text:
    """Figures of one written text.

    ``seconds`` is the time on the board from the beginning of the first round to the end of the last token's round. In this
    time the device took ``device_seconds`` for passes and ``commit_seconds`` for commits. ``host`` has the seconds of the
    host by kind of work.
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


def script(session: Session, target: Target, task: PromptTask, tokens: int) -> Script:
    """Return the task's text with the model's logits after each of its tokens, from passes of ``target`` over it all.

    Raises:
        DeviceError: passes over many tokens give other tokens than the passes in which the text was written.
    """
    beyond = session.generate(
        task.ids, n_predict=tokens + BEYOND, sampling=SamplingConfig(temperature=0), ignore_eos=True
    )
    ids = np.array([*task.ids, *beyond.tokens], np.int32)
    state = target.open(session.run.limits)
    first = len(task.ids) - 1
    logits = read(target, state, ids, session.run.limits.nodes)[first:]
    state.close()
    said = logits[:-1, : session.bundle.tokens.size].argmax(axis=1)
    if said.tolist() != ids[first + 1 :].tolist() or not _agree(beyond.tokens, task.expected):
        raise DeviceError(f"{task.source}: the model gave two different answers; this is a bug in edgedec")
    return Script(
        kind=task.kind,
        source=task.source,
        prompt=len(task.ids),
        tokens=min(tokens, len(task.expected)),
        said=Said(text=ids, first=first, logits=logits),
    )


def _agree(one: Sequence[int], other: Sequence[int]) -> bool:
    """Return whether the two agree in all tokens of the shorter one."""
    return all(mine == theirs for mine, theirs in zip(one, other, strict=False))


class ScriptWriter:
    """Writes scripts.

    Parameters:
        info: description of the embedded model's target.
        draft: the embedded draft.
        device: times of the accelerator.
        vocab: vocabulary of the larger model.
        cpu: function that makes the embedded model's own target, on which every pass is run as well; None: the logits of
            the scripts are used without running a pass.
    """

    def __init__(
        self,
        info: TargetInfo,
        draft: Bundle,
        device: DeviceCosts,
        *,
        vocab: int,
        cpu: Callable[[Limits], Target] | None = None,
    ) -> None:
        self._info, self._draft, self._device, self._vocab = info, draft, device, vocab
        config = device.config
        self._limits = Limits(nodes=config.slots, depth=config.slots - 1, positions=config.context)
        self._cpu = None if cpu is None else cpu(self._limits)

    def write(self, scripts: Sequence[Script], method: Method, host: BoardHost) -> tuple[list[Text], Books]:
        """Write the scripts one after the other.

        Each script has a decoder of its own, or all have the same one, which keeps what its draft has learned.

        Raises:
            DeviceError: the decoder wrote another text.
        """
        clock = BoardClock()
        books, fabric = Books(clock=clock, costs=host.costs), Fabric(clock)
        limits = replace(self._limits, depth=0) if method.name == "none" else self._limits
        texts, decoder = list[Text](), None
        drafter = self._drafter(method.name, books)
        with board_time(clock), self._draft_passes(books, fabric, fabric_drafts=method.fabric):
            for one in scripts:
                target = DeviceTarget(self._info, self._vocab, one.said, self._device, fabric, books, inner=self._cpu)
                if decoder is None or not host.keeps:
                    decoder = self._decoder(target, drafter, method, books, limits)
                    policy = BookedPolicy(_policy(method.policy, books.clock), method.policy, books)
                texts.append(self._written(one, decoder, policy, target, books, limits))
        return texts, books

    def _decoder(
        self, target: DeviceTarget, drafter: Drafter, method: Method, books: Books, limits: Limits
    ) -> AutoregressiveDecoder:
        return open_decoder(
            target,
            target.open(limits),
            drafter=BookedDrafter(drafter, method.name, books),
            vocab_limit=self._vocab,
        )

    def _drafter(self, name: str, books: Books) -> Drafter:
        drafter = create_drafter(name, self._draft if name in ("model", "auto") else None, threads=1)
        candidates: Any = getattr(drafter, "_drafters", None)  # drafters of ``auto``, recorded separately
        for inner in candidates or ():
            candidates[inner] = BookedDrafter(candidates[inner], inner, books, by_policy=False)
        return drafter

    @contextmanager
    def _draft_passes(self, books: Books, fabric: Fabric, *, fabric_drafts: bool) -> Iterator[None]:
        """Charge passes of a draft model to the host, or to the accelerator."""
        module: Any = model
        before, curve = module.load_target, self._device.draft if fabric_drafts else None
        module.load_target = lambda *args, **options: DraftTarget(before(*args, **options), books, fabric, curve)
        try:
            yield
        finally:
            module.load_target = before

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
            verifier=create_verifier("match", 0),
            random=PositionRandom(seed=0),
            top_k=1,  # sufficient for greedy texts, as in a session
        )
        for token in decoder.generate(request):
            tokens.append(token.id)
            if len(tokens) == one.tokens:
                break
        if tokens != one.said.text[one.prompt :][: one.tokens].tolist():
            raise DeviceError(f"{one.source}: the decoder wrote another text; this is a bug in edgedec")
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
        )


def _policy(name: str, clock: BoardClock) -> TreePolicy:
    if name != "hardware":
        return create_policy(name)
    policy: TreePolicy = load(POLICIES, name).create(None, clock.perf_counter)  # it reads the clock
    return policy


def kinds(texts: Sequence[Text]) -> list[str]:
    """Return the kinds of the texts, in order of their first occurrence."""
    return list(dict.fromkeys(text.kind for text in texts))
