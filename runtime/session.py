"""A loaded bundle, ready to write: tokenizer, target, decoder and meter in one object, closed as one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from edgedec.bundle import Bundle
from edgedec.embedded import bundle_folder
from edgedec.errors import EdgedecError, UsageError
from edgedec.memory import MemoryMeter
from edgedec.progress import Progress, silent
from edgedec.runtime.accelerator.counters import Counters
from edgedec.runtime.accelerator.timings import Counting, DeviceTimings, power_meter
from edgedec.runtime.chat_template import render
from edgedec.runtime.decoders import open_decoder
from edgedec.runtime.decoders.autoregressive import Rounds
from edgedec.runtime.kernels.layout_cache import charged_folders
from edgedec.runtime.planning import RunPlan, make_plan
from edgedec.runtime.protocols import I32
from edgedec.runtime.sampling import Sampler, SamplingConfig
from edgedec.runtime.speculation import SpecConfig, create_drafter, create_policy, create_verifier
from edgedec.runtime.stream import TextStream
from edgedec.runtime.targets import host_device, is_accelerator, open_target, target_module
from edgedec.runtime.tokenizer import Tokenizer
from edgedec.runtime.verifiers.match import Match

if TYPE_CHECKING:
    from edgedec.runtime.accelerator.options import AcceleratorOptions
    from edgedec.runtime.accelerator.power import Energy, PowerMeter

__all__ = ["Answer", "Session", "Timings", "open_model"]

CHARACTERS_PER_TOKEN = 32  # no text averages more; tokens that are longer are runs of blanks
StopReason = Literal["eos", "stop", "limit", "context", "interrupted"]


@dataclass(kw_only=True)
class Timings:
    """``prompt``: from the request to the first token. ``predicted``: all tokens, the first's time left out, so that
    ``predicted_per_second`` is (predicted_n - 1) / seconds after the first.
    """

    prompt_n: int = 0
    prompt_kept: int = 0  # of these, rows that the cache still held from the answer before
    prompt_ms: float = 0.0
    predicted_n: int = 0
    predicted_ms: float = 0.0
    planned_bytes: int = 0
    peak_bytes: int = 0
    lossless: str = ""
    drafter: str = "none"
    rounds: Rounds = field(default_factory=Rounds)
    speculating: bool = False  # whether it still did at the end
    kernel: str | None = None  # as the target's info has it
    accelerator: DeviceTimings | None = None

    @property
    def prompt_per_second(self) -> float:
        return 1000 * (self.prompt_n - self.prompt_kept) / self.prompt_ms if self.prompt_ms else 0.0

    @property
    def predicted_per_second(self) -> float:
        return 1000 * (self.predicted_n - 1) / self.predicted_ms if self.predicted_n > 1 else 0.0

    def as_json(self) -> dict[str, Any]:
        return {
            "prompt_n": self.prompt_n,
            "prompt_ms": round(self.prompt_ms, 3),
            "prompt_per_second": round(self.prompt_per_second, 3),
            "predicted_n": self.predicted_n,
            "predicted_ms": round(self.predicted_ms, 3),
            "predicted_per_second": round(self.predicted_per_second, 3),
            "planned_bytes": self.planned_bytes,
            "peak_bytes": self.peak_bytes,
            "lossless": self.lossless,
            "drafter": self.drafter,
            "rounds": self.rounds.count,
            "draft_n": self.rounds.drafted,
            "draft_n_accepted": sum(self.rounds.accepted),
            "accepted_by_position": list(self.rounds.accepted),
            "draft_prompt_ms": round(1000 * self.rounds.read_seconds, 3),
            "draft_ms": round(1000 * self.rounds.draft_seconds, 3),
            "verify_ms": round(1000 * self.rounds.verify_seconds, 3),
            "commit_ms": round(1000 * self.rounds.commit_seconds, 3),
            "speculating": self.speculating,
            "kernel": self.kernel,
            **({} if self.accelerator is None else {"accelerator": self.accelerator.as_json()}),
        }


@dataclass(kw_only=True)
class Answer:
    """``tokens``: ids after the prompt; an end token that ended the answer is the last of them and has no text.

    ``drafted``: for each of them, whether it was an accepted guess.
    """

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    drafted: list[bool] = field(default_factory=list)
    stop_reason: StopReason = "limit"
    timings: Timings = field(default_factory=Timings)


class Session:
    """Open with ``Session.open``; use as a context manager."""

    def __init__(
        self,
        bundle: Bundle,
        run: RunPlan,
        meter: MemoryMeter,
        *,
        device: str,
        threads: int,
        accelerator: AcceleratorOptions | None = None,
        progress: Progress = silent,
    ) -> None:
        self.bundle, self.run, self.meter = bundle, run, meter
        self.tokenizer = Tokenizer.load(bundle.tokenizer_file)
        meter.mark()
        self.target = open_target(
            bundle,
            device=device,
            limits=run.limits,
            threads=threads,
            kv_bits=run.plan.kv_bits,
            accelerator=accelerator,
            progress=progress,
        )
        self._device = self.target if isinstance(self.target, Counting) else None
        self._power: PowerMeter | None = None
        self._at_start = self._at_prompt = Counters()  # of the last answer
        try:
            self._power = None if self._device is None else power_meter(self._device.facts)
            self._open_decoder(device=device, threads=threads)
        except BaseException:
            self._close_device()
            raise

    def _open_decoder(self, *, device: str, threads: int) -> None:
        run, tokens = self.run, self.bundle.tokens.size
        self.meter.mark()
        self.state = self.target.open(run.limits)
        sampler = Sampler(SamplingConfig(), tokens)  # each answer brings its own, with policy and verifier
        self.decoder = open_decoder(
            self.target,
            self.state,
            sampler.distribution,
            drafter=create_drafter(run.spec.drafter, run.draft, device=host_device(device), threads=threads),
            vocab_limit=tokens,
            overlaps=self._device is not None,
        )
        self.decoder.open_draft(run.limits)
        self.meter.mark()

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        device: str = "cpu",
        threads: int = 0,
        ctx_size: int = 0,
        kv_bits: int | None = None,
        spec: SpecConfig | None = None,
        budget_bytes: int | None = None,
        accelerator: AcceleratorOptions | None = None,
        progress: Progress = silent,
    ) -> Self:
        """Plan, then load.

        Args:
            path: of a bundle, or of a board bundle, which is for an accelerator; or the name of an embedded model, such as
                ``"demo"``.
            spec: what to speculate with; None: nothing.
            accelerator: which, where the device is one; None: the usual one.
            progress: of what takes an accelerator minutes to prepare.

        Raises:
            BudgetError: no plan fits ``budget_bytes``; nothing was loaded.
            BundleError, UnsupportedError, DeviceError, UsageError: as ``Bundle.open`` and ``open_target``.
        """
        folder = bundle_folder(path)
        if spec is not None and spec.draft is not None:
            spec = replace(spec, draft=bundle_folder(spec.draft))
        target_module(
            device, accelerator
        )  # imports ONNX Runtime: part of the baseline, not of what the model is charged
        charged = charged_folders(folder)
        if spec is not None and spec.draft is not None:
            charged = (*charged, *charged_folders(Path(spec.draft)))
        meter = MemoryMeter(charged)
        meter.start()
        try:
            bundle, accelerator = open_model(folder, device, accelerator)
            run = make_plan(
                bundle,
                device=device,
                threads=threads,
                ctx_size=ctx_size,
                kv_bits=kv_bits,
                spec=spec,
                budget_bytes=budget_bytes,
                baseline_bytes=meter.baseline_bytes,
                accelerator=accelerator,
            )
            run.plan.require()
            return cls(bundle, run, meter, device=device, threads=threads, accelerator=accelerator, progress=progress)
        except BaseException:
            meter.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        try:
            self.state.close()
            self._close_device()
        finally:
            self.meter.close()

    def _close_device(self) -> None:
        if self._power is not None:
            self._power.stop()
        if self._device is not None:
            self._device.close()

    def encode(self, prompt: str) -> I32:
        """Ids of a plain prompt.

        Raises:
            UsageError: it is empty.
            EdgedecError: it is too long for any tokenizer to fit it into the context.
        """
        if not prompt:
            raise UsageError("the prompt is empty; give some text with -p")
        self._check_length(prompt)
        ids = self.tokenizer.encode(prompt)
        if not len(ids):
            raise UsageError("the tokenizer makes no token of the prompt; give some text with -p")
        return ids

    def may_fit(self, text: str) -> bool:
        """Return False if ``text`` is too long for any tokenizer to fit it into the context."""
        return len(text) <= self.run.limits.positions * CHARACTERS_PER_TOKEN

    def _check_length(self, text: str) -> None:
        """Tokenizing takes hundreds of bytes a token: what cannot fit is refused before."""
        context = self.run.limits.positions
        if not self.may_fit(text):
            raise EdgedecError(
                f"the prompt has {len(text)} characters, far more than a context of {context} tokens holds; "
                "shorten it or raise --ctx-size"
            )

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> I32:
        """Ids of a conversation, ready for the assistant's answer.

        Raises:
            UsageError: the model has no template.
            EdgedecError: the template refuses the conversation, or it cannot fit the context.
        """
        text = self.render_chat(messages)
        self._check_length(text)
        return self.tokenizer.encode_rendered(text)

    def render_chat(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The conversation as the model's own template writes it, ready for the assistant's answer."""
        tokens = self.bundle.tokens
        return render(
            self.bundle.chat_template,
            messages,
            bos_token=self._spelling(tokens.bos),
            eos_token=self._spelling(tokens.eos[0] if tokens.eos else None),
            add_generation_prompt=True,
        )

    def _spelling(self, token: int | None) -> str:
        return "" if token is None else self.tokenizer.token_of(token) or ""

    def generate(
        self,
        prompt: I32,
        *,
        n_predict: int = -1,
        sampling: SamplingConfig | None = None,
        stop: Sequence[str] = (),
        ignore_eos: bool = False,
        on_text: Callable[[str], None] = lambda text: None,
        interrupted: Callable[[], bool] = lambda: False,
        progress: Progress = silent,
    ) -> Answer:
        """Continue ``prompt`` int32 [n].

        Args:
            n_predict: at most so many tokens; negative: until the context is full.
            on_text: called with text as it becomes safe to print.
            interrupted: asked after each token; true ends the answer.
            progress: of reading the prompt.

        Raises:
            EdgedecError: the prompt does not fit the context.
            DeviceError: the target returned NaN.
        """
        config = sampling or SamplingConfig()
        sampler = Sampler(config, self.bundle.tokens.size)
        self.decoder.processor = sampler.distribution
        rng = config.rng()
        drawn = config.temperature > 0 and self.run.spec.drafter != "none"
        self.decoder.policy = create_policy(self.run.spec.policy, rng.spawn(1)[0] if drawn else None)
        self.decoder.sizes_itself = self.run.spec.policy == "hardware"
        self.decoder.verifier = create_verifier(config.temperature) if drawn or not config.temperature else Match()
        self.decoder.interrupted = interrupted
        self.decoder.on_prefill = lambda done, total: self._prefilled(done, total, progress)
        self.decoder.top_k = self._enough(config)
        stream = TextStream(self.tokenizer, stop, context=prompt)
        answer = Answer(stop_reason="limit" if n_predict >= 0 else "context")
        kept = self.decoder.shared_prefix(prompt)
        self._at_start = self._at_prompt = at_first = self._counters
        if self._power is not None:
            self._power.start()
        began = time.perf_counter()
        first = began
        for token in self._tokens(prompt, n_predict, rng):
            if not answer.tokens:
                first, at_first = time.perf_counter(), self._counters
            answer.tokens.append(token)
            answer.drafted.append(self.decoder.guessed)
            if token in self.bundle.tokens.eos and not ignore_eos:
                answer.stop_reason = "eos"
                break
            self._emit(stream.feed(token), answer, on_text)
            if stream.stopped:
                answer.stop_reason = "stop"
                break
            if len(answer.tokens) == n_predict:
                break
            if interrupted():
                answer.stop_reason = "interrupted"
                break
        else:  # the decoder ended by itself
            answer.stop_reason = "limit" if n_predict == 0 else "interrupted" if interrupted() else "context"
        ended = time.perf_counter()
        energy = None if self._power is None else self._power.stop()
        self._emit(stream.finish(), answer, on_text)
        self.meter.mark()
        answer.timings = Timings(
            prompt_n=len(prompt),
            prompt_kept=kept,
            prompt_ms=1000 * (first - began),
            predicted_n=len(answer.tokens),
            predicted_ms=1000 * (ended - first),
            planned_bytes=self.run.plan.total_bytes,
            peak_bytes=self._peak_bytes,
            lossless="exact" if self.target.info.batch_invariant else "up to float ties",
            drafter=self.run.spec.drafter,
            rounds=self.decoder.rounds,
            speculating=self.run.spec.drafter != "none" and self.decoder.speculating,
            kernel=self.target.info.kernel,
            accelerator=self._device_timings(at_first, len(answer.tokens), energy),
        )
        return answer

    @property
    def _counters(self) -> Counters:
        return Counters() if self._device is None else self._device.counters

    def _prefilled(self, done: int, total: int, progress: Progress) -> None:
        progress("prompt tokens", done, total)
        self._at_prompt = self._counters

    def _enough(self, config: SamplingConfig) -> int:
        """Likeliest tokens of a row that the sampler needs, where an accelerator finds them by itself; 0: whole rows."""
        if self._device is None or config.temperature or config.repeat_penalty != 1:
            return 0
        return self._device.top_k

    @property
    def _peak_bytes(self) -> int:
        """A simulated board's memories are the buffers that the driver has allocated there: the host's growth beside them is
        the simulator's, and no board's.
        """
        if self._device is None:
            return self.meter.peak_bytes
        own = self.meter.peak_bytes if self._device.facts.kind == "measured" else 0
        return own + self._device.device_bytes

    def _device_timings(self, at_first: Counters, tokens: int, energy: Energy | None) -> DeviceTimings | None:
        if self._device is None:
            return None
        return DeviceTimings(
            facts=self._device.facts,
            prompt=self._at_prompt - self._at_start,
            decode=self._counters - self._at_prompt,
            first_token_seconds=(at_first - self._at_start).seconds,
            tokens=tokens,
            rounds=self.decoder.rounds,
            energy=None if energy is None else energy.as_json(tokens),
        )

    def _tokens(self, prompt: I32, n_predict: int, rng: np.random.Generator) -> Iterator[int]:
        if n_predict == 0:
            self.decoder.rounds = Rounds()
            return iter(())
        return self.decoder.generate(prompt, self.run.limits, rng, tree_nodes=self.run.spec.nodes)

    @staticmethod
    def _emit(text: str, answer: Answer, on_text: Callable[[str], None]) -> None:
        if text:
            answer.text += text
            on_text(text)


def open_model(
    path: str | Path, device: str, accelerator: AcceleratorOptions | None
) -> tuple[Bundle, AcceleratorOptions | None]:
    """Return the model at ``path``, or of that name; a board bundle says which accelerator it is for."""
    path = bundle_folder(path)
    if not is_accelerator(device):
        return Bundle.open(path), accelerator
    from edgedec.runtime.accelerator.board_bundle import open_board_bundle
    from edgedec.runtime.accelerator.board_manifest import MANIFEST
    from edgedec.runtime.accelerator.options import AcceleratorOptions

    if not (path / MANIFEST).is_file():
        return Bundle.open(path), accelerator
    found, options = open_board_bundle(path), accelerator or AcceleratorOptions()
    if options.board not in ("", found.board) or options.size != "small" or options.overrides:
        raise UsageError(
            f"{path}: is the accelerator that was built for {found.board}; leave --board and --configuration out, or give "
            "the model's own bundle"
        )
    return found.model, replace(options, board_bundle=found)
