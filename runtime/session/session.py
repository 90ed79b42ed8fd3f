"""A session: a loaded bundle with its tokenizer, target, decoder and memory meter, opened and closed together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from edgedec.errors import EdgedecError, UsageError
from edgedec.keywords import shows_keywords
from edgedec.memory.heap import trim_heap
from edgedec.memory.meter import MemoryMeter
from edgedec.progress import Progress, silent
from edgedec.runtime.base.pause import Pause
from edgedec.runtime.capabilities import ClosableTarget
from edgedec.runtime.decoders._cached import CachedDecoder
from edgedec.runtime.engine.scheduler import Task
from edgedec.runtime.grammar.compiler import CompiledGrammar, GrammarCompiler
from edgedec.runtime.grammar.reasoning import AnswerMasks
from edgedec.runtime.model_graph import last_layer
from edgedec.runtime.planning.planning import RunPlan
from edgedec.runtime.planning.speculation import run_taps
from edgedec.runtime.pooling import PooledRows, Pooling
from edgedec.runtime.protocols import F32, I32, Drafter
from edgedec.runtime.run_settings import RunKeywords, RunSettings
from edgedec.runtime.session.answer import Answer, AnswerStream, Piece
from edgedec.runtime.session.open_run import open_run
from edgedec.runtime.session.open_scheduler import open_scheduler, run_drafter
from edgedec.runtime.session.request_builder import RequestBuilder
from edgedec.runtime.session.session_figures import SessionFigures
from edgedec.runtime.session.session_memory import SessionMemory
from edgedec.runtime.session.writer import AnswerWriter
from edgedec.runtime.targets import load_target
from edgedec.runtime.text.stream import TextStream
from edgedec.runtime.text.tokenizer import Tokenizer
from edgedec.runtime.text_settings import TextKeywords, TextSettings

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from edgedec.runtime.grammar.grammar import Grammar

__all__ = ["Session"]

CHARACTERS_PER_TOKEN = 32  # upper bound of a text's average; longer tokens are runs of blanks


class Session:
    """A loaded model that answers prompts, one at a time or several together.

    Call ``Session.open`` to open one, and use it as a context manager.

    Members:
        bundle: the model.
        run: the plan of the run and its limits.
        meter: measures the memory of the process.
        tokenizer: the model's tokenizer.
        target: runs the passes.
        state: the cache.
        scheduler: writes the answers.
        memory: gives parts of the memory back while the session is open.
        embedding_layer, embedding_size: the value of which embeddings are made, such as ``layers.3.out``, and the numbers of
            one; empty and 0 if the session was opened without ``embeddings``.
    """

    def __init__(self, run: RunPlan, settings: RunSettings, meter: MemoryMeter, *, progress: Progress = silent) -> None:
        self.bundle, self.run, self.meter = run.bundle, run, meter
        self.embedding_layer, self.embedding_size = last_layer(run.bundle) if settings.embeddings else ("", 0)
        self._closed = False
        self.tokenizer = Tokenizer.load(run.bundle.tokenizer_file)
        self._grammars = GrammarCompiler(self.tokenizer)
        meter.mark()
        trim_heap()  # because reading the vocabulary has freed blocks
        drafter = run_drafter(run, settings)
        taps = run_taps(run.bundle, drafter, embeddings=settings.embeddings)
        request = settings.target_request(
            run.limits, kv_bits=run.plan.kv_bits, taps=taps, recipe=run.spec.writes.traits.recipe
        )
        self.target = load_target(run.bundle, request, accelerator=settings.accelerator, progress=progress)
        self._requests = RequestBuilder(run, vocab=run.bundle.tokens.size, top_k=self.target.info.top_k)
        self._figures = SessionFigures(self.target, run, meter, self._requests)
        try:
            self._figures.open()
            self._open_decoders(drafter)
        except BaseException:
            self._close_device()
            raise

    def _open_decoders(self, drafter: Drafter) -> None:
        self.meter.mark()
        trim_heap()  # because loading has freed blocks, and the passes that measure the costs fill the cache
        self.state = self.target.open(self.run.limits)
        self.scheduler = open_scheduler(
            self.target,
            self.state,
            self.run,
            drafter,
            vocab_limit=self.bundle.tokens.size,
            overlaps=self.target.info.overlaps,
        )
        self.scheduler.watched = self.meter.watched
        self.memory = SessionMemory(self.target, self.scheduler, self.run.plan.items)
        self.meter.mark()
        trim_heap()  # because the drafter's loading has freed blocks, too

    @property
    def pause(self) -> Pause:
        """The signal that ends the rounds of ``whole`` texts earlier. Another thread may set it; clear it before a step."""
        return self._requests.pause

    @property
    def decoder(self) -> CachedDecoder:
        """The decoding loop, or the first of several."""
        return self.scheduler.decoders[0]

    @decoder.setter
    def decoder(self, decoder: CachedDecoder) -> None:
        self.scheduler.decoders[0] = decoder
        self.scheduler.engine.target, self.scheduler.engine.cost = decoder.target, decoder.cost

    @classmethod
    @shows_keywords(RunSettings)
    def open(
        cls, path: str | Path, *, verify: bool = False, progress: Progress = silent, **keywords: Unpack[RunKeywords]
    ) -> Self:
        """Plan a run and load the model. See ``load`` for the other arguments and the errors.

        Args:
            keywords: the members of ``RunSettings``.
        """
        return cls.load(path, RunSettings(**keywords), verify=verify, progress=progress)

    @classmethod
    def load(
        cls, path: str | Path, settings: RunSettings, *, verify: bool = False, progress: Progress = silent
    ) -> Self:
        """Plan a run and load the model.

        Args:
            path: folder of a bundle, or of a board bundle for an accelerator, or the name of an embedded model, such as
                ``"demo"``.
            settings: the settings of the run.
            verify: read all files of the model even if they were checked before and have not changed since.
            progress: called during the preparation of an accelerator, which may take minutes.

        Raises:
            BudgetError: no plan fits ``budget_bytes``; nothing was loaded.
            BundleError, UnsupportedError, DeviceError, UsageError: ``open_run`` or ``load_target`` raised it.
        """
        run, settings, meter = open_run(path, settings, verify=verify)
        try:
            session = cls(run, settings, meter, progress=progress)
            meter.rest()
        except BaseException:
            meter.close()
            raise
        return session

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def prepare_grammars(self) -> None:
        """Read the vocabulary for grammars now, which would otherwise delay the first text with a grammar, and all others.

        Raises:
            ToolError: the package that follows grammars is not installed.
            UnsupportedError: the model's tokenizer cannot be used with grammars.
        """
        with self.meter.watched:
            self._grammars.prepare()

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """Return a grammar that is ready for one answer. This may be called in any thread.

        Raises:
            UsageError: the grammar does not fit the tokenizer.
            UnsupportedError: the model's tokenizer cannot be used with grammars.
        """
        with self.meter.watched:
            return self._grammars.compile(grammar)

    def close(self) -> None:
        """End the answer that is being written, as interrupted, and free the model. A second call does nothing.

        If a part cannot be closed, the others are closed all the same, and the error passes on.
        """
        self._closed = True
        with ExitStack() as stack:  # it calls them in the opposite order
            stack.callback(self.meter.close)
            stack.callback(self._close_device)
            for decoder in self.scheduler.decoders:
                stack.callback(decoder.state.close)
            stack.callback(self.state.close)
            stack.callback(self.scheduler.close)

    def _close_device(self) -> None:
        with ExitStack() as stack:
            if isinstance(self.target, ClosableTarget):
                stack.callback(self.target.close)
            stack.callback(self._figures.close)

    def encode(self, prompt: str, *, control_tokens: bool = True) -> I32:
        """Return the ids of a plain prompt, int32 [n]. Without ``control_tokens`` their spelling in it is text.

        Raises:
            UsageError: the prompt is empty.
            EdgedecError: the prompt is too long for the context, whatever the tokenizer.
        """
        if not prompt:
            raise UsageError("the prompt is empty; give some text with -p")
        self._check_length(prompt)
        with self.meter.watched:
            ids = self.tokenizer.encode(prompt, control_tokens=control_tokens)
        if not len(ids):
            raise UsageError("the tokenizer makes no token of the prompt; give some text with -p")
        trim_heap()  # because the tokenizer has freed some hundred bytes for each token
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

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], *, sanitize: bool = True) -> I32:
        """Return the ids of a conversation, int32 [n], to be continued by the assistant's answer.

        With ``sanitize`` control tokens in the messages are text, otherwise only those in results of tools are.

        Raises:
            UsageError: the model has no chat template.
            EdgedecError: the template refuses the conversation, or the text is too long for the context.
        """
        text = self.render_chat(messages, sanitize=sanitize)
        self._check_length(text)
        with self.meter.watched:
            return self.tokenizer.encode_rendered(text)

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], *, sanitize: bool = True, template: str | None = None
    ) -> str:
        """Return the text of a conversation in the model's chat template, to be continued by the assistant's answer.

        With ``sanitize`` it is a ``RenderedText``, which ``Tokenizer.encode_rendered`` reads without the control tokens of
        the messages. A ``template`` is the source of one in place of the model's own.

        Raises:
            UsageError: the model has no chat template.
            EdgedecError: the template refuses the conversation.
        """
        from edgedec.runtime.text.chat_template import render  # imports Jinja, which plain texts do not need
        from edgedec.runtime.text.provenance import OutsideMessage

        tokens = self.bundle.tokens
        with self.meter.watched:
            return render(
                self.bundle.chat_template if template is None else template,
                [OutsideMessage(message) for message in messages] if sanitize else messages,
                bos_token=self._spelling(tokens.bos),
                eos_token=self._spelling(tokens.eos[0] if tokens.eos else None),
                add_generation_prompt=True,
            )

    def _spelling(self, token: int | None) -> str:
        return "" if token is None else self.tokenizer.token_of(token) or ""

    @shows_keywords(TextSettings)
    def generate(
        self,
        prompt: str | I32,
        *,
        on_text: Callable[[Piece], None] | None = None,
        **keywords: Unpack[TextKeywords],
    ) -> Answer:
        """Continue ``prompt`` and return the complete answer. See ``write`` for the errors.

        Args:
            prompt: a text, or the ids of ``encode`` or ``encode_chat``, int32 [n].
            on_text: called with each piece of the text as soon as it can be printed; None: the text is ``whole``.
            keywords: the members of ``TextSettings``.
        """
        keywords.setdefault("whole", on_text is None)
        stream = self.stream(prompt, **keywords)
        with stream:  # if ``on_text`` fails, the answer ends now, while the target is still open
            for piece in stream:
                if on_text is not None:
                    on_text(piece)
        return stream.answer

    def embed(self, prompt: str | I32, *, pooling: Pooling = "mean") -> F32:
        """Return the embedding of a text, float32 [embedding_size], of length 1, see ``PooledRows``.

        Args:
            prompt: a text, or the ids of ``encode``, int32 [n].
            pooling: ``mean`` of the last layer's outputs for all tokens, or that of the ``last`` token.

        Raises:
            EdgedecError: the text does not fit the context, or the session was opened without ``embeddings``.
            DeviceError: the target failed.
        """
        rows = PooledRows(pooling)
        with self.stream(prompt, on_rows=rows.add) as stream:
            for _ in stream:
                pass
        return rows.vector()

    @shows_keywords(TextSettings)
    def stream(self, prompt: str | I32, **keywords: Unpack[TextKeywords]) -> AnswerStream:
        """Continue ``prompt`` and return a stream of the answer's text. See ``write``.

        Args:
            prompt: a text, or the ids of ``encode`` or ``encode_chat``, int32 [n].
            keywords: the members of ``TextSettings``.
        """
        return self.write(prompt, TextSettings(**keywords))

    def write(self, prompt: str | I32, text: TextSettings) -> AnswerStream:
        """Continue ``prompt`` and return a stream of the answer's text, which is written while it is iterated over.

        A session writes as many answers at a time as it was opened for, and reading one of them continues all. Further ones
        wait for their turn. In a session for one answer, a new answer ends the one before: read an answer to its end, or
        close it, before you start the next one.

        Args:
            prompt: a text, or the ids of ``encode`` or ``encode_chat``, int32 [n].
            text: the settings of the answer.

        Raises:
            EdgedecError: the prompt does not fit the context.
            UsageError: the prompt is empty, the session is closed, or another answer of it was started before this one
                ended.
            DeviceError: the target failed, or returned NaN.
        """
        if self._closed:
            raise UsageError("the session is closed, and its model is no longer loaded; open another session")
        if text.on_rows is not None and not self.embedding_layer:
            raise UsageError("the session was opened without embeddings; open it with embeddings=True")
        if isinstance(prompt, str):
            prompt = self.encode(prompt)
        account = self._figures.account()
        ends = () if text.ignore_eos else self.bundle.tokens.eos
        constraint = self._constraint(text, len(prompt), ends)
        ends = (*ends, *text.stop_tokens)

        def on_prefill(done: int, total: int) -> None:
            text.progress("prompt tokens", done, total)
            if account.reads:
                words.read_context()  # an accelerator runs the pass of the part before meanwhile
            account.prompt_read(whole=done == total)
            if text.on_rows is not None and done == total:
                account.first_token()  # there is none, and the time up to here is the prompt's

        request = self._requests.build(
            prompt, text, constraint=constraint, ends=ends, on_prefill=on_prefill, row_tap=self.embedding_layer
        )
        self.decoder.check(request)
        words = TextStream(self.tokenizer, text.stop, context=prompt)
        writer = AnswerWriter(
            Answer(),
            account,
            words,
            n_predict=text.n_predict,
            ends=ends,
            interrupted=text.interrupted,
            complete=None if constraint is None else constraint.complete,
        )
        task = Task(
            request=request,
            writer=writer,
            most_tokens=text.n_predict if text.on_rows is None else 0,
            on_begin=lambda task: self._figures.begin(account),
            on_end=partial(self._figures.finish, writer),
        )
        if text.n_predict or text.on_rows is not None:
            self.scheduler.add(task)
        else:
            self._write_nothing(task, writer)
        if task.error is not None:
            raise task.error
        return AnswerStream(writer, task, self.scheduler)

    def _constraint(self, text: TextSettings, prompt_length: int, ends: Sequence[int]) -> AnswerMasks | None:
        """Return the masks of an answer's grammar and reasoning; None: it may be any text."""
        rest = None
        if text.grammar is not None:
            rest = self._grammars.constraint(text.grammar, prompt_length=prompt_length, ends=ends)
        if text.reasoning is None:
            return rest
        return self._grammars.reasoning(text.reasoning, rest, prompt_length=prompt_length, ends=ends)

    def _write_nothing(self, task: Task, writer: AnswerWriter) -> None:
        """Answer with no token; nothing is read, either."""
        task.decoder = self.decoder
        task.decoder.begin()
        self._figures.begin(writer.account)
        writer.end("limit")
        self._figures.finish(writer, task)
        task.ended = True
