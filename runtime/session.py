"""A session: a loaded bundle with its tokenizer, target, decoder and memory meter, opened and closed together."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast
from weakref import ref

import numpy as np

from edgedec.bundle import Bundle
from edgedec.embedded import bundle_folder
from edgedec.errors import EdgedecError, UsageError
from edgedec.memory import MemoryMeter
from edgedec.progress import Progress, silent
from edgedec.runtime.accelerator.timings import DeviceTimings, power_meter
from edgedec.runtime.answer import Answer, AnswerStream, Piece, Timings
from edgedec.runtime.coupling import Coupled
from edgedec.runtime.decoders import open_decoder, open_switch
from edgedec.runtime.decoders.autoregressive import AutoregressiveDecoder
from edgedec.runtime.decoders.switch import SmallModel, SwitchDecoder
from edgedec.runtime.driver.counters import Counters
from edgedec.runtime.kernels.layout_cache import charged_folders
from edgedec.runtime.planning import RunPlan, make_plan
from edgedec.runtime.position_random import PositionRandom
from edgedec.runtime.protocols import I32, AcceleratorTarget, Request, Token, TreePolicy
from edgedec.runtime.sampling import Sampler, SamplingConfig
from edgedec.runtime.speculation import SpecConfig, create_drafter, create_policy, create_verifier, verifier_traits
from edgedec.runtime.targets import host_device, is_accelerator, open_target, target_module
from edgedec.runtime.text.chat_template import render
from edgedec.runtime.text.stream import TextStream
from edgedec.runtime.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from edgedec.runtime.accelerator.options import AcceleratorOptions
    from edgedec.runtime.accelerator.power import Energy, PowerMeter

__all__ = ["Session", "open_model"]

CHARACTERS_PER_TOKEN = 32  # upper bound of a text's average; longer tokens are runs of blanks


class _Account:
    """Times and counters noted while an answer is written: the host's clock in seconds, and an accelerator's counters."""

    def __init__(self, counters: Callable[[], Counters]) -> None:
        self._counters = counters
        self.at_start = self.at_prompt = self.at_first = Counters()
        self.began = self.first = self.ended = 0.0

    def begin(self) -> None:
        """Note the begin of the prompt."""
        self.at_start = self.at_prompt = self.at_first = self._counters()
        self.began = self.first = time.perf_counter()

    def prompt_read(self) -> None:
        """Note that the prompt, or a further part of it, is in the cache."""
        self.at_prompt = self._counters()

    def first_token(self) -> None:
        """Note the first token."""
        self.first, self.at_first = time.perf_counter(), self._counters()

    def end(self) -> None:
        """Note the last token. Only the first call has an effect."""
        self.ended = self.ended or time.perf_counter()


class Session:
    """A loaded model that answers prompts, one at a time.

    Call ``Session.open`` to open one, and use it as a context manager.

    Members:
        bundle: the model.
        run: the plan of the run and its limits.
        meter: measures the memory of the process.
        tokenizer: the model's tokenizer.
        target: runs the passes.
        state: the cache.
        decoder: the decoding loop.
    """

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
        self._closed = False
        self._policies: dict[str, TreePolicy] = {}  # by kind of children
        self._draws = np.random.default_rng(0)  # for policies that draw children; each answer gives it a seed
        # Weak, so that a stream that is dropped ends at once.
        self._stream: Callable[[], AnswerStream | None] = lambda: None
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
        self._device = self.target if isinstance(self.target, AcceleratorTarget) else None
        self._power: PowerMeter | None = None
        try:
            self._power = None if self._device is None else power_meter(self._device.facts)
            self._open_decoder(device=device, threads=threads)
        except BaseException:
            self._close_device()
            raise

    def _open_decoder(self, *, device: str, threads: int) -> None:
        run = self.run
        self.meter.mark()
        self.state = self.target.open(run.limits)
        spec = run.spec
        drafter = create_drafter(
            spec.drafter, run.draft, device=host_device(device), threads=threads, samples=spec.samples
        )
        self.decoder: AutoregressiveDecoder | SwitchDecoder
        if run.spec.decoder == "switch":
            small = cast(SmallModel, drafter)  # ``SpecConfig`` takes no other drafter than ``model`` for a switch
            self.decoder = open_switch(self.target, self.state, small=small, config=run.spec.switch)
        else:
            self.decoder = open_decoder(
                self.target,
                self.state,
                drafter=drafter,
                vocab_limit=self.bundle.tokens.size,
                overlaps=self._device is not None,
                tree_nodes=run.spec.nodes,
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
        """Plan a run and load the model.

        Args:
            path: folder of a bundle, or of a board bundle for an accelerator, or the name of an embedded model, such as
                ``"demo"``.
            device: a value of ``--device``.
            threads: number of CPU threads; 0 leaves it to the target.
            ctx_size: size of the context in tokens; 0 chooses it, see ``make_plan``.
            kv_bits: bits of keys and values; None chooses them.
            spec: settings of speculation; None: no speculation.
            budget_bytes: maximum memory of the model in bytes; None: no limit.
            accelerator: the accelerator, if the device is one; None: the default one.
            progress: called during the preparation of an accelerator, which may take minutes.

        Raises:
            BudgetError: no plan fits ``budget_bytes``; nothing was loaded.
            BundleError, UnsupportedError, DeviceError, UsageError: ``Bundle.open``, ``make_plan`` or ``open_target`` raised
                it.
        """
        folder = bundle_folder(path)
        if spec is not None and spec.draft is not None:
            spec = replace(spec, draft=bundle_folder(spec.draft))
        # This imports ONNX Runtime, which belongs to the baseline and is not charged to the model.
        target_module(device, accelerator)
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
        """End the answer that is being written, as interrupted, and free the model. A second call does nothing.

        If a part cannot be closed, the others are closed all the same, and the error passes on.
        """
        self._closed = True
        with ExitStack() as stack:  # it calls them in the opposite order
            stack.callback(self.meter.close)
            stack.callback(self._close_device)
            stack.callback(self.state.close)
            if stream := self._stream():
                stack.callback(stream.close)

    def _close_device(self) -> None:
        with ExitStack() as stack:
            if self._device is not None:
                stack.callback(self._device.close)
            if self._power is not None:
                stack.callback(self._power.stop)

    def encode(self, prompt: str) -> I32:
        """Return the ids of a plain prompt, int32 [n].

        Raises:
            UsageError: the prompt is empty.
            EdgedecError: the prompt is too long for the context, whatever the tokenizer.
        """
        if not prompt:
            raise UsageError("the prompt is empty; give some text with -p")
        self._check_length(prompt)
        ids = self.tokenizer.encode(prompt)
        if not len(ids):
            raise UsageError("the tokenizer makes no token of the prompt; give some text with -p")
        return ids

    def may_fit(self, text: str) -> bool:
        """Return False if ``text`` is too long for the context, whatever the tokenizer."""
        return len(text) <= self.run.limits.positions * CHARACTERS_PER_TOKEN

    def _check_length(self, text: str) -> None:
        """Refuse a text that cannot fit before it is tokenized, which takes hundreds of bytes per token."""
        context = self.run.limits.positions
        if not self.may_fit(text):
            raise EdgedecError(
                f"the prompt has {len(text)} characters, far more than a context of {context} tokens holds; "
                "shorten it or raise --ctx-size"
            )

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> I32:
        """Return the ids of a conversation, int32 [n], to be continued by the assistant's answer.

        Raises:
            UsageError: the model has no chat template.
            EdgedecError: the template refuses the conversation, or the text is too long for the context.
        """
        text = self.render_chat(messages)
        self._check_length(text)
        return self.tokenizer.encode_rendered(text)

    def render_chat(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Return the text of a conversation in the model's chat template, to be continued by the assistant's answer.

        Raises:
            UsageError: the model has no chat template.
            EdgedecError: the template refuses the conversation.
        """
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
        prompt: str | I32,
        *,
        n_predict: int = -1,
        sampling: SamplingConfig | None = None,
        stop: Sequence[str] = (),
        ignore_eos: bool = False,
        sample: int = 0,
        dropped: int = 0,
        on_text: Callable[[Piece], None] = lambda piece: None,
        interrupted: Callable[[], bool] = lambda: False,
        progress: Progress = silent,
    ) -> Answer:
        """Continue ``prompt`` and return the complete answer. See ``stream`` for the other arguments and the errors.

        Args:
            on_text: called with each piece of the text as soon as it can be printed.
        """
        stream = self.stream(
            prompt,
            n_predict=n_predict,
            sampling=sampling,
            stop=stop,
            ignore_eos=ignore_eos,
            sample=sample,
            dropped=dropped,
            interrupted=interrupted,
            progress=progress,
        )
        with stream:  # if ``on_text`` fails, the answer ends now, while the target is still open
            for piece in stream:
                on_text(piece)
        return stream.answer

    def stream(
        self,
        prompt: str | I32,
        *,
        n_predict: int = -1,
        sampling: SamplingConfig | None = None,
        stop: Sequence[str] = (),
        ignore_eos: bool = False,
        sample: int = 0,
        dropped: int = 0,
        interrupted: Callable[[], bool] = lambda: False,
        progress: Progress = silent,
    ) -> AnswerStream:
        """Continue ``prompt`` and return a stream of the answer's text, which is written while it is iterated over.

        A session writes one answer at a time. Read an answer to its end, or close it, before you start the next one.

        Args:
            prompt: a text, or the ids of ``encode`` or ``encode_chat``, int32 [n].
            n_predict: maximum number of tokens; negative: until the context is full.
            sampling: sampling options; None: the defaults of ``SamplingConfig``.
            stop: strings that end the answer; they are not part of its text.
            ignore_eos: continue after an end token.
            sample: index of this text among several of one prompt and seed, which are drawn independently.
            dropped: number of tokens that a conversation has dropped before ``prompt``. Random numbers belong to positions
                in the whole conversation, so that none is used twice.
            interrupted: called after each token and between the passes over the prompt; True ends the answer.
            progress: called between the passes over the prompt.

        Raises:
            EdgedecError: the prompt does not fit the context.
            UsageError: the prompt is empty, the session is closed, or another answer of it was started before this one
                ended.
            DeviceError: the target failed, or returned NaN.
        """
        if self._closed:
            raise UsageError("the session is closed, and its model is no longer loaded; open another session")
        if isinstance(prompt, str):
            prompt = self.encode(prompt)
        account = _Account(lambda: self._counters)
        request = self._request(
            prompt, sampling or SamplingConfig(), interrupted, account, progress, sample=sample, dropped=dropped
        )
        ends = () if ignore_eos else self.bundle.tokens.eos
        answer, text = Answer(), TextStream(self.tokenizer, stop, context=prompt)
        stream = AnswerStream(answer, self._write(answer, request, account, text, n_predict=n_predict, ends=ends))
        self._stream = ref(stream)
        return stream

    def _request(
        self,
        prompt: I32,
        config: SamplingConfig,
        interrupted: Callable[[], bool],
        account: _Account,
        progress: Progress,
        *,
        dropped: int,
        sample: int,
    ) -> Request:
        def prefilled(done: int, total: int) -> None:
            progress("prompt tokens", done, total)
            account.prompt_read()

        spec, sampler = self.run.spec, Sampler(config, self.bundle.tokens.size)
        random = PositionRandom.seeded(config.seed, sample)
        children = verifier_traits(spec.verifier, config.temperature).children
        policy = self._policy(children, [random.seed, sample])
        if config.temperature:
            shared = random if children == "coupled" else None
            policy = Coupled(policy=policy, sampler=sampler, random=shared, dropped=dropped)
        return Request(
            prompt=prompt,
            limits=self.run.limits,
            tree_nodes=spec.nodes,
            processor=sampler.distribution,
            policy=policy,
            verifier=create_verifier(spec.verifier, config.temperature),
            random=random,
            greedy=config.temperature == 0,
            dropped=dropped,
            top_k=0 if self._device is None or config.needs_whole_rows else self._device.top_k,
            interrupted=interrupted,
            on_prefill=prefilled,
        )

    def _policy(self, children: str, seed: Sequence[int]) -> TreePolicy:
        """Return the policy whose trees have such children. It is kept from answer to answer, because policies learn.

        Args:
            children: kind of children, a value of ``VerifierTraits.children``.
            seed: seed of the numbers that the children of the next answer are drawn with.
        """
        self._draws.bit_generator.state = np.random.default_rng(seed).bit_generator.state
        kind = children if children in ("drawn", "independent") else "chosen"
        policy = self._policies.get(kind)
        if policy is None:
            rng = None if kind == "chosen" else self._draws
            policy = create_policy(self.run.spec.policy, rng, independent=kind == "independent")
            self._policies[kind] = policy
        return policy

    def _write(
        self,
        answer: Answer,
        request: Request,
        account: _Account,
        text: TextStream,
        *,
        n_predict: int,
        ends: Sequence[int],
    ) -> Generator[Piece]:
        """Write the answer and fill in its timings when it ends or its stream is closed."""
        kept = self.decoder.shared_prefix(request.prompt)
        if self._power is not None:
            self._power.start()
        ended = False
        account.begin()
        try:
            yield from self._pieces(answer, request, account, text, n_predict=n_predict, ends=ends)
            ended = True
        except GeneratorExit:
            answer.stop_reason, ended = "interrupted", True
            raise
        finally:
            account.end()
            energy = None if self._power is None else self._power.stop()
            if ended:  # after a failure the target may have no counters to read
                self.meter.mark()
                answer.timings = self._timings(answer, request, account, energy, kept=kept)

    def _pieces(
        self,
        answer: Answer,
        request: Request,
        account: _Account,
        text: TextStream,
        *,
        n_predict: int,
        ends: Sequence[int],
    ) -> Iterator[Piece]:
        guessed = False
        for token, guessed in self._tokens(request, n_predict):
            if not answer.tokens:
                account.first_token()
            answer.tokens.append(token)
            answer.drafted.append(guessed)
            if token in ends:
                answer.stop_reason = "eos"
                break
            if piece := text.feed(token):
                answer.text += piece
                yield Piece(piece, guessed=guessed)
            if text.stopped:
                answer.stop_reason = "stop"
                break
            if len(answer.tokens) == n_predict:
                answer.stop_reason = "limit"
                break
            if request.interrupted():
                answer.stop_reason = "interrupted"
                break
        else:  # the decoder ended by itself
            if n_predict == 0:
                answer.stop_reason = "limit"
            else:
                answer.stop_reason = "interrupted" if request.interrupted() else "context"
        account.end()
        if piece := text.finish():
            answer.text += piece
            yield Piece(piece, guessed=guessed)

    def _timings(
        self, answer: Answer, request: Request, account: _Account, energy: Energy | None, *, kept: int
    ) -> Timings:
        rounds, tokens, device = self.decoder.rounds, len(answer.tokens), None
        if self._device is not None:
            device = DeviceTimings(
                facts=self._device.facts,
                prompt=account.at_prompt - account.at_start,
                decode=self._counters - account.at_prompt,
                first_token_seconds=(account.at_first - account.at_start).seconds,
                tokens=tokens,
                rounds=rounds,
                energy=None if energy is None else energy.as_json(tokens),
            )
        return Timings(
            prompt_n=len(request.prompt),
            prompt_kept=kept,
            prompt_ms=1000 * (account.first - account.began),
            predicted_n=tokens,
            predicted_ms=1000 * (account.ended - account.first),
            planned_bytes=self.run.plan.total_bytes,
            peak_bytes=self._peak_bytes,
            lossless=self._lossless(request),
            drafter=self.run.spec.drafter_name,
            rounds=rounds,
            speculating=self.run.spec.drafter != "none" and self.decoder.speculating,
            kernel=self.target.info.kernel,
            accelerator=device,
            switch=self.decoder.counts if isinstance(self.decoder, SwitchDecoder) else None,
        )

    def _lossless(self, request: Request) -> str:
        """Return in which sense the text is the one that would be written without guesses."""
        spec = self.run.spec
        if spec.decoder == "switch":
            return "lossy"
        kept = verifier_traits(spec.verifier, 0 if request.greedy else 1).lossless
        if spec.drafter != "none" and kept != "exact":
            return kept
        return "exact" if self.target.info.batch_invariant else "up to float ties"

    @property
    def _counters(self) -> Counters:
        return Counters() if self._device is None else self._device.counters

    @property
    def _peak_bytes(self) -> int:
        """Peak memory of the run in bytes.

        For a simulated board only the driver's buffers count, because the growth of the host's memory is due to the
        simulator.
        """
        if self._device is None:
            return self.meter.peak_bytes
        own = self.meter.peak_bytes if self._device.facts.kind == "measured" else 0
        return own + self._device.device_bytes

    def _tokens(self, request: Request, n_predict: int) -> Iterator[Token]:
        if n_predict == 0:
            self.decoder.begin()
            return iter(())
        return self.decoder.generate(request)


def open_model(
    path: str | Path, device: str, accelerator: AcceleratorOptions | None
) -> tuple[Bundle, AcceleratorOptions | None]:
    """Return the model at ``path``, or the embedded model of that name, and the options of its accelerator.

    The options are those of the argument, with the board bundle if ``path`` is one.

    Raises:
        UsageError: the options name a board or a configuration that is not the board bundle's.
    """
    path = bundle_folder(path)
    if not is_accelerator(device):
        return Bundle.open(path), accelerator
    from edgedec.runtime.accelerator.board_bundle import open_board_bundle
    from edgedec.runtime.accelerator.board_manifest import MANIFEST
    from edgedec.runtime.accelerator.options import AcceleratorOptions

    if not (path / MANIFEST).is_file():
        return Bundle.open(path), accelerator
    board_bundle, options = open_board_bundle(path), accelerator or AcceleratorOptions()
    if options.board not in ("", board_bundle.board) or options.size != "small" or options.overrides:
        raise UsageError(
            f"{path} is the accelerator that was built for {board_bundle.board}; leave out --board and --configuration, or "
            "give the model's own bundle"
        )
    return board_bundle.model, replace(options, board_bundle=board_bundle)
