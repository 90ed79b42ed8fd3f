"""Say which size of draft would pay for a model on a device and under a memory budget.

Each candidate is a shape of a draft. A law of acceptance predicts how often its guesses are right, and the planner, from the
manifest that its int8 bundle would have, how many bytes it takes and how fast the run would be. No candidate is trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from edgedec.bundle.bundle import Bundle
from edgedec.bundle.manifest import ALIGNMENT, Tensor
from edgedec.families import build_graph
from edgedec.graph.ops import Embed, Linear
from edgedec.memory.plan import Plan
from edgedec.runtime.planning.draft_law import DraftLaw
from edgedec.runtime.planning.planning import make_plan
from edgedec.runtime.planning.speculation import SpecConfig
from edgedec.runtime.run_settings import RunSettings
from edgedec.schemes import FloatScheme, Int8Scheme

__all__ = ["Candidate", "DraftAdvice", "advise_draft", "draft_bundle", "draft_config", "parameter_count"]

LAYERS = 2  # layers of a candidate: those of the kept drafts, which differ in their width alone
_STEP = 1.25  # ratio of the widths of neighbouring candidates
_MULTIPLE = 8  # widths are multiples of this
_PAYS = 1.005  # speedup from which a draft is worth its training
_BEYOND = 2.0  # factor by which candidates go beyond the sizes of the fit


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A draft that could be trained.

    Members:
        hidden_size, intermediate_size, heads, layers: shape, as options of ``edgedec distil``.
        parameters: number of weights, embedding included.
        acceptance: predicted share of accepted guesses.
        extrapolated: whether the size lies beyond those of the fit.
        fits: whether a plan with it fits the budget.
        ctx_size, kv_bits: context of this plan in tokens, and bits of its keys and values.
        total_bytes: bytes that this plan charges.
        tokens_per_second: estimated speed.
        speedup: this speed over that without a draft, with the same context, bits and budget.
    """

    hidden_size: int
    intermediate_size: int
    heads: int
    layers: int
    parameters: int
    acceptance: float
    extrapolated: bool
    fits: bool
    ctx_size: int
    kv_bits: int
    total_bytes: int
    tokens_per_second: float
    speedup: float


@dataclass(frozen=True, kw_only=True)
class DraftAdvice:
    """The candidates, from the smallest, and the plan without a draft under the same budget.

    Members:
        plain_fits, plain_ctx_size, plain_kv_bits, plain_tokens_per_second: whether that plan fits, its context, the bits of
            its keys and values, and its estimated speed.
        candidates: the candidates.
        best: the candidate with the largest speedup that fits; None if none fits or none is faster than no draft.
    """

    plain_fits: bool
    plain_ctx_size: int
    plain_kv_bits: int
    plain_tokens_per_second: float
    candidates: tuple[Candidate, ...]
    best: Candidate | None


def draft_config(target: Mapping[str, Any], hidden_size: int) -> dict[str, Any]:
    """Return the configuration of a draft of this width: a Llama with the target's vocabulary, context and head width."""
    width = int(target.get("head_dim") or target["hidden_size"] // target["num_attention_heads"])
    heads = max(1, round(hidden_size / width))
    return {
        "model_type": "llama",
        "hidden_act": "silu",
        "vocab_size": int(target["vocab_size"]),
        "max_position_embeddings": int(target["max_position_embeddings"]),
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "head_dim": width,
        "hidden_size": hidden_size,
        "intermediate_size": _MULTIPLE * round(hidden_size * 8 / 3 / _MULTIPLE),
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "num_hidden_layers": LAYERS,
    }


def draft_bundle(target: Bundle, hidden_size: int) -> Bundle:
    """Return a bundle that has a manifest and no files: that of an int8 draft of this width, for plans."""
    config = draft_config(target.config, hidden_size)
    graph = build_graph(config)
    matrices = {op.weight for op in graph.operations if isinstance(op, Embed)}
    matrices |= {weight for op in graph.operations if isinstance(op, Linear) for weight in op.weights}
    tensors, end = dict[str, Tensor](), 0
    for name, weight in graph.weights.items():
        scheme = Int8Scheme(rows=True) if name in matrices else FloatScheme(dtype="bfloat16")  # distil writes bfloat16
        offsets = {}
        for part, spec in scheme.parts(weight.shape).items():
            end += -end % ALIGNMENT
            offsets[part] = end
            end += spec.nbytes
        tensors[name] = Tensor(shape=weight.shape, scheme=scheme, offsets=offsets)
    files = {"weights.bin": end, "tokenizer.json": target.file_bytes["tokenizer.json"]}
    manifest = replace(
        target.manifest, config=config, tensors=tensors, file_bytes=files, quantization={"method": "int8"}
    )
    return Bundle(path=target.path, manifest=manifest)


def parameter_count(bundle: Bundle) -> int:
    """Return the number of weights of a model; a head that is tied to the embedding is not counted again."""
    if "parameters" in bundle.quantization:
        return int(bundle.quantization["parameters"])
    tied = bool(bundle.config.get("tie_word_embeddings"))
    return sum(tensor.count for name, tensor in bundle.tensors.items() if not (tied and name == "lm_head.weight"))


def _widths(target: Bundle, law: DraftLaw, ratio: float) -> list[int]:
    """Return the widths of drafts from half the smallest to twice the largest size of the fit, below the target's."""
    widths, width = list[int](), float(_MULTIPLE)
    while width <= target.config["hidden_size"]:
        rounded = _MULTIPLE * round(width / _MULTIPLE)
        if rounded not in widths:
            widths.append(rounded)
        width *= _STEP
    most = parameter_count(target)

    def near(hidden_size: int) -> bool:
        count = parameter_count(draft_bundle(target, hidden_size))
        return count < most and law.smallest / _BEYOND <= count * ratio <= law.largest * _BEYOND

    return [width for width in widths if near(width)]


def advise_draft(
    bundle: Bundle,
    law: DraftLaw,
    settings: RunSettings,
    *,
    fitted_on: int = 0,
    draft_max: int = 8,
) -> DraftAdvice:
    """Return the candidates with their plans.

    Args:
        bundle: the model.
        law: the law of acceptance.
        settings: the settings of the run; a candidate replaces their speculation.
        fitted_on: parameters of the model that the law was fitted on, if it is another one: a draft is then assumed to be
            accepted as often as a draft of that model with the same share of its parameters. 0: it is this model.
        draft_max: maximum number of guesses on a path.

    Raises:
        UsageError, UnsupportedError: ``make_plan`` raised it.
    """
    ratio = fitted_on / parameter_count(bundle) if fitted_on else 1.0

    @cache
    def plain(context: int, bits: int | None) -> Plan:
        return make_plan(bundle, replace(settings, ctx_size=context, kv_bits=bits, spec=None)).plan

    spec = SpecConfig(drafter="model", draft=bundle.path, draft_max=draft_max)
    candidates = []
    for hidden_size in _widths(bundle, law, ratio):
        draft = draft_bundle(bundle, hidden_size)
        count = parameter_count(draft)
        accepted = law.acceptance(count * ratio)
        plan = make_plan(bundle, replace(settings, spec=spec), drafts=(draft,), acceptance=accepted).plan
        candidates.append(
            Candidate(
                hidden_size=hidden_size,
                intermediate_size=draft.config["intermediate_size"],
                heads=draft.config["num_attention_heads"],
                layers=LAYERS,
                parameters=count,
                acceptance=accepted,
                extrapolated=not law.covers(count * ratio),
                fits=plan.fits and plan.draft_model,
                ctx_size=plan.ctx_size,
                kv_bits=plan.kv_bits,
                total_bytes=plan.total_bytes,
                tokens_per_second=plan.estimated_tokens_per_second,
                speedup=plan.estimated_tokens_per_second
                / plain(plan.ctx_size, plan.kv_bits).estimated_tokens_per_second,
            )
        )
    without = plain(settings.ctx_size, settings.kv_bits)
    return DraftAdvice(
        plain_fits=without.fits,
        plain_ctx_size=without.ctx_size,
        plain_kv_bits=without.kv_bits,
        plain_tokens_per_second=without.estimated_tokens_per_second,
        candidates=tuple(candidates),
        best=max(
            (one for one in candidates if one.fits and one.speedup > _PAYS), key=lambda one: one.speedup, default=None
        ),
    )
