"""``edgedec plan --advise-draft``: fit the law of acceptance against draft size, draw it, and say which size would pay."""

from __future__ import annotations

import json as json_module
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgedec.bundle.embedded import EMBEDDED
from edgedec.cli.console import print_json, progress, read_text
from edgedec.cli.options import resolve_model
from edgedec.errors import UsageError

if TYPE_CHECKING:
    from edgedec.bundle.bundle import Bundle
    from edgedec.cli.run_options import PlanOptions
    from edgedec.runtime.planning.draft_advice import Candidate, DraftAdvice
    from edgedec.runtime.planning.draft_law import DraftLaw, MeasuredDraft

__all__ = ["Fit", "advise", "chart", "report"]

TEMPERATURE = 0.8  # temperature at which drafts are measured, the default of ``generate``
_WIDTH, _HEIGHT = 61, 13  # characters of the chart
_SAMPLES = 3  # texts that a model without a text writes for each opening


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Measured drafts, the law that fits them, and each draft's error when the law is fitted on the others.

    Members:
        model: name of the model that the drafts guess for.
        fitted_on: parameters of that model, if advice is given for another one; 0: it is the same.
        positions: number of measured positions.
        text: description of the text.
    """

    model: str
    fitted_on: int
    positions: int
    text: str
    drafts: tuple[MeasuredDraft, ...]
    law: DraftLaw
    errors: tuple[float, ...]


def advise(options: PlanOptions, *, drafts: Sequence[str], text: Path | None, plot: Path | None, json: bool) -> None:
    """Carry out ``--advise-draft``."""
    from edgedec.cli._plot import check_plot
    from edgedec.runtime.decoders import DEFAULT
    from edgedec.runtime.planning.draft_advice import advise_draft
    from edgedec.runtime.session.model_folder import open_model

    if options.spec_type not in ("none", "model") or options.model_draft or options.decoder != DEFAULT:
        raise UsageError("--advise-draft is about drafts of --spec-type model that need not exist: leave out -md, "
                         "--spec-type and --decoder; --draft gives drafts to measure")  # fmt: skip
    if text is not None and not drafts:
        raise UsageError("--text is the text on which the drafts of --draft are measured; give them, or leave it out")
    if plot is not None:
        check_plot(plot)
    kind = _kind(options)
    bundle, accelerator = open_model(resolve_model(options.model), options.device, options.accelerator())
    fit = _measured(options.model, bundle, drafts, text, kind) if drafts else _kept(kind)
    advice = advise_draft(
        bundle,
        fit.law,
        options.settings(budget_bytes=options.budget_bytes, accelerator=accelerator),
        fitted_on=fit.fitted_on,
        draft_max=options.draft_max,
    )
    if plot is not None:
        from edgedec.cli._draft_plot import write_draft_plot

        write_draft_plot(plot, fit.drafts, fit.law)
    if json:
        print_json(as_json(fit, advice))
    else:
        print("\n".join(report(fit, advice, options)))


def _kind(options: PlanOptions) -> str:
    """Return which measured acceptance is the verifier's: of guesses that are ``chosen``, or ``drawn``."""
    from edgedec.runtime.planning.speculation import SpecConfig, verifier_traits

    traits = verifier_traits(SpecConfig(verifier=options.verifier).verifier)
    return "drawn" if traits.children == "drawn" else "chosen"


def _kept(kind: str) -> Fit:
    """Return the fit of the measurements that edgedec comes with."""
    from edgedec import demo
    from edgedec.runtime.planning.draft_law import MeasuredDraft

    data = json_module.loads(demo.DRAFTS.read_text("utf-8"))
    drafts = [
        MeasuredDraft(name=draft["name"], parameters=draft["parameters"], acceptance=draft[kind])
        for draft in data["drafts"]
    ]
    return _fit(
        drafts,
        floor=data["floor"][kind],
        ceiling=data["ceiling"][kind],
        model=data["model"],
        fitted_on=data["model_parameters"],
        positions=data["positions"],
        text=data["text"],
    )


def _measured(model: str, target: Bundle, names: Sequence[str], text: Path | None, kind: str) -> Fit:
    """Measure the drafts that the user gives, and return their fit."""
    from edgedec import demo
    from edgedec.bundle.bundle import Bundle
    from edgedec.runtime.measure.acceptance import measure_acceptance, read_texts, write_texts
    from edgedec.runtime.planning.draft_advice import parameter_count
    from edgedec.runtime.planning.draft_law import LEAST_DRAFTS, MeasuredDraft
    from edgedec.runtime.sampling.sampling import SamplingConfig
    from edgedec.runtime.text.tokenizer import Tokenizer

    if len(names) < LEAST_DRAFTS:
        raise UsageError(
            f"--draft must be given for at least {LEAST_DRAFTS} drafts of different sizes, not {len(names)}"
        )
    bundles = [Bundle.open(resolve_model(name)) for name in names]
    sampling = SamplingConfig(temperature=TEMPERATURE, seed=0)
    with progress("measuring the drafts") as tell:
        if text is not None or model in EMBEDDED:
            lines = demo.HELD_OUT.read_text("utf-8") if text is None else read_text(text, "--text")
            texts = read_texts(lines.splitlines(), Tokenizer.load(target.tokenizer_file).encode)
            about = "held_out.txt" if text is None else str(text)
        else:
            texts = write_texts(target, sampling, samples=_SAMPLES, progress=tell)
            about = f"{len(texts)} texts that the model wrote"
        table = measure_acceptance(target, bundles, texts, sampling, progress=tell)
    drafts = [
        MeasuredDraft(name=name, parameters=parameter_count(bundle), acceptance=getattr(acceptance, kind))
        for name, bundle, acceptance in zip(names, bundles, table.drafts, strict=True)
    ]
    return _fit(
        drafts,
        floor=getattr(table.floor, kind),
        ceiling=getattr(table.ceiling, kind),
        model=model,
        fitted_on=0,
        positions=table.positions,
        text=about,
    )


def _fit(
    drafts: Sequence[MeasuredDraft],
    *,
    floor: float,
    ceiling: float,
    model: str,
    fitted_on: int,
    positions: int,
    text: str,
) -> Fit:
    from edgedec.runtime.planning.draft_law import fit_law, left_out

    drafts = sorted(drafts, key=lambda draft: draft.parameters)
    return Fit(
        model=model,
        fitted_on=fitted_on,
        positions=positions,
        text=text,
        drafts=tuple(drafts),
        law=fit_law(drafts, floor=floor, ceiling=ceiling),
        errors=tuple(left_out(drafts, floor=floor, ceiling=ceiling)),
    )


def as_json(fit: Fit, advice: DraftAdvice) -> dict[str, Any]:
    """Return the object of ``--json``."""
    return {
        "model": fit.model,
        "extrapolated_to_another_model": bool(fit.fitted_on),
        "text": fit.text,
        "positions": fit.positions,
        "temperature": TEMPERATURE,
        "law": asdict(fit.law),
        "drafts": [
            asdict(draft) | {"predicted": fit.law.acceptance(draft.parameters), "error_left_out": error}
            for draft, error in zip(fit.drafts, fit.errors, strict=True)
        ],
        "largest_error_left_out": max(map(abs, fit.errors)),
        **asdict(advice),
    }


def report(fit: Fit, advice: DraftAdvice, options: PlanOptions) -> list[str]:
    """Return the lines of the report."""
    from edgedec.memory.byte_sizes import format_bytes

    law = fit.law
    lines = [
        f"acceptance of drafts of {fit.model}, measured on {fit.positions:,} positions ({fit.text}), "
        f"temperature {TEMPERATURE}",
        "",
        "  draft            parameters   accepted   law     error if left out of the fit",
        *(
            f"  {draft.name[-16:]:16} {draft.parameters:>10,}   {draft.acceptance:8.3f}   "
            f"{law.acceptance(draft.parameters):5.3f}   {error:+.3f}"
            for draft, error in zip(fit.drafts, fit.errors, strict=True)
        ),
        "",
        f"law: ln((a - {law.floor:.3f}) / ({law.ceiling:.3f} - a)) = {law.intercept:.2f} + {law.slope:.3f} ln(parameters); "
        f"largest error of a draft that is left out: {max(map(abs, fit.errors)):.3f}",
        "",
        *chart(fit.drafts, law),
        "",
    ]
    if fit.fitted_on:
        lines += [
            f"The law was fitted on drafts of {fit.model} ({fit.fitted_on:,} parameters) and its text. For {options.model}",
            "it is only assumed that a draft with the same share of the model's parameters is accepted as often. Measure",
            "drafts of your own with --draft A --draft B --draft C to replace this assumption.",
            "",
        ]
    budget = "no budget" if options.budget_bytes is None else f"a budget of {format_bytes(options.budget_bytes)}"
    lines += [
        f"on {options.device} with {budget}, estimated, not measured: {advice.plain_tokens_per_second:.0f} tokens/s without "
        f"a draft, context {advice.plain_ctx_size}, KV {advice.plain_kv_bits} bits"
        + ("" if advice.plain_fits else " (this does not fit either)"),
        "",
        "  hidden   parameters   accepted   context   KV   planned bytes   tokens/s   speedup",
        *map(_row, advice.candidates),
        "",
        _verdict(advice),
    ]
    return lines


def _row(candidate: Candidate) -> str:
    """Return the line of a candidate."""
    from edgedec.memory.byte_sizes import format_bytes

    line = f"  {candidate.hidden_size:6}   {candidate.parameters:>10,}   {candidate.acceptance:8.3f}   "
    size = format_bytes(candidate.total_bytes)
    if candidate.fits:
        line += f"{candidate.ctx_size:7}   {candidate.kv_bits:2}   {size:>13}   "
        line += f"{candidate.tokens_per_second:8.0f}   {candidate.speedup:7.2f}"
    else:
        line += f"does not fit: {size} at a context of {candidate.ctx_size}"
    return line + ("   beyond the measured sizes" if candidate.extrapolated else "")


def _verdict(advice: DraftAdvice) -> str:
    best = advice.best
    if best is None:
        reason = (
            "none is faster than no draft" if any(one.fits for one in advice.candidates) else "none fits the budget"
        )
        return f"advice: train no draft; of {len(advice.candidates)} sizes {reason}"
    text = (
        f"advice: a draft of {best.parameters:,} parameters, an estimated {best.speedup:.2f} times the speed without one: "
        f"edgedec distil ... --method float --init random --layers {best.layers} --hidden-size {best.hidden_size} "
        f"--intermediate-size {best.intermediate_size} --heads {best.heads}"
    )
    if (best.ctx_size, best.kv_bits) != (advice.plain_ctx_size, advice.plain_kv_bits):
        text += (
            f"\nits memory has a price: a context of {best.ctx_size} with KV of {best.kv_bits} bits, instead of "
            f"{advice.plain_ctx_size} with {advice.plain_kv_bits}"
        )
    return text


def chart(drafts: Sequence[MeasuredDraft], law: DraftLaw) -> list[str]:
    """Return a chart of acceptance against the logarithm of size, with the drafts, the law and its ceiling."""
    low, high = math.log(law.smallest / 1.5), math.log(law.largest * 1.5)
    grid = [[" "] * _WIDTH for _ in range(_HEIGHT)]
    top = math.ceil(10 * law.ceiling) / 10

    def row(acceptance: float) -> int:
        return min(_HEIGHT - 1, max(0, round((_HEIGHT - 1) * (1 - acceptance / top))))

    def column(parameters: float) -> int:
        return round((_WIDTH - 1) * (math.log(parameters) - low) / (high - low))

    grid[row(law.ceiling)] = ["-"] * _WIDTH
    for at in range(_WIDTH):
        grid[row(law.acceptance(math.exp(low + (high - low) * at / (_WIDTH - 1))))][at] = "."
    for draft in drafts:
        grid[row(draft.acceptance)][column(draft.parameters)] = "o"
    labels = {0: f"{top:.2f}", _HEIGHT // 2: f"{top / 2:.2f}", _HEIGHT - 1: "0.00"}
    lines = [f"  {labels.get(at, ''):>4} |{''.join(cells).rstrip()}" for at, cells in enumerate(grid)]
    left, right = f"{math.exp(low):,.0f}", f"{math.exp(high):,.0f} parameters"
    return [
        "  accepted (o measured, . law, - the model as its own draft)",
        *lines,
        "       +" + "-" * _WIDTH,
        "        " + left + right.rjust(_WIDTH - len(left)),
    ]
