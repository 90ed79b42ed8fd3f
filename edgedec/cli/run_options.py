"""The options of commands that run a model: the model and its device, sampling, and speculation.

A command has one of these classes as a parameter, and ``command_line`` adds a command-line option for each field.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from typer.models import ArgumentInfo

from edgedec.bundle.embedded import EMBEDDED, EMBEDDED_DRAFT
from edgedec.cli._accelerator import accelerator_options
from edgedec.cli._collection import collect_usually
from edgedec.cli._run_notes import note_disk, note_drafts, note_limit, note_policy, note_texts
from edgedec.cli.console import progress
from edgedec.cli.model_options import CacheTypeK, CacheTypeV, ModelWord, cache_bits, one_model
from edgedec.cli.options import (
    Board,
    Configuration,
    CtxSize,
    DecoderName,
    Device,
    DraftMax,
    FrequencyPenalty,
    IgnoreEos,
    KvBits,
    KvPolicy,
    LogitBias,
    MemoryBudget,
    MemoryModel,
    MinP,
    Model,
    ModelDraft,
    NPredict,
    PresencePenalty,
    Record,
    RepeatLastN,
    RepeatPenalty,
    ReversePrompt,
    Seed,
    ShowDraft,
    SpecTree,
    SpecType,
    Temp,
    Threads,
    TopK,
    TopP,
    TreeNodes,
    VerifierName,
    Verify,
    budget_bytes,
    logit_bias,
    memory_option,
    resolve_model,
)
from edgedec.errors import BudgetError, UsageError
from edgedec.runtime.decoders import DEFAULT

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from edgedec.memory.budget import Budget
    from edgedec.runtime.accelerator.options import AcceleratorOptions
    from edgedec.runtime.planning.plan_search import PlanFunction
    from edgedec.runtime.planning.speculation import SpecConfig
    from edgedec.runtime.run_settings import RunKeywords, RunSettings
    from edgedec.runtime.sampling.sampling import SamplingConfig
    from edgedec.runtime.session.session import Session

__all__ = ["PlanOptions", "RunOptions", "SamplingOptions", "TextOptions", "command_line"]

_LOG = logging.getLogger(__name__)
_WORD = "model_word"  # parameter of the bundle without -m


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """The options that determine the memory of a run: model, context, drafter and device.

    An option whose name is that of a member of ``RunSettings`` is that setting. An option of other commands, too, has its
    type in ``options.py``.
    """

    model: Model = ""
    ctx_size: CtxSize = 0
    kv_bits: KvBits = None
    cache_type_k: CacheTypeK = None
    cache_type_v: CacheTypeV = None
    kv_policy: KvPolicy = None
    value_rows: Annotated[
        int | None,
        memory_option(
            "--value-rows",
            metavar="N",
            help="Values of each head in memory, if the policy has them in a file; default: twice the keys of a query.",
        ),
    ] = None
    memory_budget: MemoryBudget = None
    spec_type: SpecType = "none"
    model_draft: ModelDraft = None
    draft_max: DraftMax = 8
    spec_tree: SpecTree = ""
    tree_nodes: TreeNodes = 0
    verifier: VerifierName = "match"
    decoder: DecoderName = DEFAULT
    device: Device = "cpu"
    board: Board = None
    configuration: Configuration = None
    memory: MemoryModel = None

    def __post_init__(self) -> None:
        if not self.model:
            raise UsageError("there is no model; give its bundle with -m, such as -m demo, the embedded model")
        object.__setattr__(self, "kv_bits", cache_bits(self.cache_type_k, self.cache_type_v, self.kv_bits))

    @property
    def budget_bytes(self) -> int | None:
        """Bytes of ``--memory-budget``; None without a budget."""
        return budget_bytes(self.memory_budget)

    def find_budget(self) -> Budget:
        """Return the memory budget of a run that begins now. This loads the device's libraries, which it does not count."""
        from edgedec.memory.budget import find_budget
        from edgedec.runtime.targets import target_module

        target_module(self.device, self.accelerator())
        budget = find_budget(self.budget_bytes)
        if budget.limited:
            _LOG.info("%s", budget.explain())
        return budget

    def spec(self) -> SpecConfig:
        """Return the settings of speculation. The embedded targets have their own draft.

        Raises:
            UsageError: a name is unknown, a value is out of range, or a draft is missing or has no use.
        """
        from edgedec.runtime.decoders._plugin import choose_decoder
        from edgedec.runtime.planning.speculation import SpecConfig

        drafts, drafter = tuple(self.model_draft or ()), self.spec_type
        needed = choose_decoder(self.decoder).traits.drafters
        if drafter == "none" and needed:
            drafter = needed[0]
        if not drafts and drafter in ("model", "auto") and self.model in EMBEDDED:
            drafts = () if self.model == EMBEDDED_DRAFT else (EMBEDDED_DRAFT,)
        config = SpecConfig(
            drafter=drafter,
            policy=self.spec_tree,
            draft=tuple(map(Path, drafts)),  # names are checked before any bundle is opened
            draft_max=self.draft_max,
            tree_nodes=self.tree_nodes,
            verifier=self.verifier,
            decoder=self.decoder,
        )
        return replace(config, draft=tuple(map(resolve_model, drafts)))

    def settings(self, **others: Unpack[RunKeywords]) -> RunSettings:
        """Return the settings of a run: those that are options of the same name, and ``others``.

        Raises:
            UsageError, UnsupportedError: a value is out of range, or values exclude each other.
        """
        from edgedec.runtime.run_settings import RunSettings

        options = {field.name for field in fields(self)} & {field.name for field in fields(RunSettings)}
        return RunSettings(**{name: getattr(self, name) for name in options}, **others)

    def accelerator(self, record: Path | None = None) -> AcceleratorOptions | None:
        """Return the options of the accelerator; None if the device is not one and no option is for one."""
        return accelerator_options(
            self.device, board=self.board, configuration=self.configuration, memory=self.memory, record=record
        )


@dataclass(frozen=True, kw_only=True)
class RunOptions(PlanOptions):
    """The options for opening a session."""

    record: Record = None
    threads: Threads = 0
    verify: Verify = False

    def parallel(
        self,
        requested: int,
        spec: SpecConfig,
        budget: Budget,
        *,
        most: int,
        beside: Mapping[str, int] | None = None,
        embeddings: bool = False,
    ) -> int:
        """Return the number of texts to write at a time: ``requested``, or for 0 the largest that costs nothing.

        It is at most ``most``, and each text has the context and the speculation that it would have alone. ``beside`` and
        ``embeddings`` are as in ``open_session``.
        """
        from edgedec.runtime.planning.plan_search import most_sequences
        from edgedec.runtime.targets import is_accelerator

        if requested or is_accelerator(self.device):
            return requested or 1
        settings = self.settings(spec=spec, budget_bytes=self._charged(budget), beside=beside, embeddings=embeddings)
        return most_sequences(self._plan(), settings, most)

    def with_room(
        self,
        room: Mapping[str, int],
        requested: int,
        spec: SpecConfig,
        budget: Budget,
        *,
        beside: Mapping[str, int],
        embeddings: bool = False,
    ) -> Mapping[str, int]:
        """Return ``beside`` and ``room``, or ``beside`` alone if ``room`` would cost the run context, bits or speculation.

        ``requested`` is as in ``parallel``, ``beside`` and ``embeddings`` as in ``open_session``.
        """
        from edgedec.runtime.planning.plan_search import same_settings

        budget_bytes = self._charged(budget)
        if budget_bytes is None:
            return beside
        settings = self.settings(
            spec=spec, budget_bytes=budget_bytes, sequences=max(1, requested), beside=beside, embeddings=embeddings
        )
        with_room, plan = {**beside, **room}, self._plan()
        return with_room if same_settings(plan(settings), plan(replace(settings, beside=with_room))) else beside

    def _charged(self, budget: Budget) -> int | None:
        """Return the limit that the plans of several texts keep to. A control group's limits this process, and no GPU."""
        from edgedec.runtime.targets import GPU_DEVICES

        return None if self.device in GPU_DEVICES and not budget.has_flag else budget.budget_bytes

    def _plan(self) -> PlanFunction:
        """Return the function that plans a run of the model.

        Raises:
            BundleError: the model cannot be opened.
        """
        from edgedec.bundle.bundle import Bundle
        from edgedec.runtime.planning.planning import make_plan

        return functools.partial(make_plan, Bundle.open(resolve_model(self.model), verify=self.verify))

    def open_session(
        self,
        spec: SpecConfig,
        budget: Budget,
        *,
        sequences: int = 1,
        beside: Mapping[str, int] | None = None,
        embeddings: bool = False,
    ) -> Session:
        """Plan the run under ``budget`` and load the model, with a progress bar. It writes ``sequences`` texts at a time.

        ``beside`` has the bytes of what the program keeps beside the model, by part.

        Raises:
            BudgetError: no plan fits. The message says what bounds the budget if it is not the user's own limit.
        """
        from edgedec.runtime.planning.plan_search import planned_budget
        from edgedec.runtime.session.session import Session

        path, size = resolve_model(self.model), budget.budget_bytes
        settings = self.settings(spec=spec, sequences=sequences, beside=beside, embeddings=embeddings)
        if size is not None and not budget.has_flag:
            size = planned_budget(self._plan(), settings, budget)
        settings = replace(settings, budget_bytes=size, accelerator=self.accelerator(self.record))
        try:
            with progress("preparing the model") as report:
                session = Session.load(path, settings, verify=self.verify, progress=report)
        except BudgetError as error:
            if budget.bound_by is None or budget.bound_by.source == "flag":
                raise
            raise BudgetError(f"{error}\n{budget.explain()}") from error
        finally:
            collect_usually()
        note_limit(session.run.plan, budget)
        note_drafts(session.run, spec)
        note_texts(session.run)
        note_disk(session.run.plan)
        note_policy(session.run.plan, self.kv_policy)
        return session


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """The options of sampling, and the length of an answer. Names and defaults are those of llama.cpp."""

    n_predict: NPredict = -1
    temp: Temp = 0.8
    top_k: TopK = 40
    top_p: TopP = 0.95
    min_p: MinP = 0.05
    repeat_penalty: RepeatPenalty = 1.0
    presence_penalty: PresencePenalty = 0.0
    frequency_penalty: FrequencyPenalty = 0.0
    repeat_last_n: RepeatLastN = 64
    logit_bias: LogitBias = None
    seed: Seed = -1

    def sampling(self) -> SamplingConfig:
        """Return the settings of sampling.

        Raises:
            UsageError: a value is out of range; the message names its option.
        """
        from edgedec.runtime.sampling.sampling import SamplingConfig

        bias = logit_bias(self.logit_bias)
        try:
            return SamplingConfig(
                temperature=self.temp,
                top_k=self.top_k,
                top_p=self.top_p,
                min_p=self.min_p,
                repeat_penalty=self.repeat_penalty,
                presence_penalty=self.presence_penalty,
                frequency_penalty=self.frequency_penalty,
                logit_bias=bias,
                repeat_last_n=self.repeat_last_n,
                seed=self.seed,
            )
        except UsageError as error:  # the message names the field
            field, _, rest = str(error).partition(" ")
            flag = "--temp" if field == "temperature" else f"--{field.replace('_', '-')}"
            raise UsageError(f"{flag} {rest}") from None


@dataclass(frozen=True, kw_only=True)
class TextOptions(SamplingOptions):
    """The options of sampling, and of the end of an answer and its presentation."""

    reverse_prompt: ReversePrompt = None
    ignore_eos: IgnoreEos = False
    show_draft: ShowDraft = False

    @property
    def stop(self) -> tuple[str, ...]:
        """Texts that end an answer."""
        return tuple(self.reverse_prompt or ())


def _keyword(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _is_argument(parameter: inspect.Parameter) -> bool:
    return any(isinstance(item, ArgumentInfo) for item in getattr(parameter.annotation, "__metadata__", ()))


def command_line(command: Callable[..., None]) -> Callable[..., None]:
    """Return ``command`` with a keyword parameter for each field of the options classes among its parameters.

    The framework of the command line reads the signature of the result, so that fields become options in their order. A
    command that runs a model, and has no argument of its own, takes the bundle as a word in place of ``-m`` as well.
    """
    groups: dict[str, type[Any]] = {}
    parameters: list[inspect.Parameter] = []
    # Not get_type_hints, which in Python 3.10 hides the Annotated type of a parameter with the default None in Optional.
    declared = inspect.signature(command, eval_str=True).parameters
    for parameter in declared.values():
        kind = parameter.annotation
        if not (isinstance(kind, type) and is_dataclass(kind)):
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=kind))
            continue
        groups[parameter.name] = kind
        types = get_type_hints(kind, include_extras=True)
        parameters += [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if field.default is MISSING else field.default,
                annotation=types[field.name],
            )
            for field in fields(kind)
        ]

    has_word = any(issubclass(kind, PlanOptions) for kind in groups.values()) and not any(map(_is_argument, parameters))
    own_context = "ctx" in declared
    if has_word:
        parameters.append(_keyword(_WORD, ModelWord, default=None))
        parameters += [] if own_context else [_keyword("ctx", typer.Context)]

    @functools.wraps(command)
    def run(**values: Any) -> None:
        if has_word:
            context = values["ctx"] if own_context else values.pop("ctx")
            values["model"] = one_model(context, values.pop(_WORD), values["model"])
        made = {
            name: kind(**{field.name: values.pop(field.name) for field in fields(kind)})
            for name, kind in groups.items()
        }
        command(**made, **values)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run
