"""Hold the table of which executor runs which family; it is written to ``docs/families.md`` and tested by
``test_family_table.py``.

Run ``python tests/edgedec/families/support/make_family_table.py`` to write the document.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

EXECUTORS = ("float reference", "ONNX portable", "CPU kernels", "integer profile", "accelerator")
INTEGERS = EXECUTORS[3:]
DOCUMENT = Path(__file__).parents[4] / "docs" / "families.md"


@dataclass(frozen=True, kw_only=True)
class Row:
    """Describe one model of the table.

    ``refused`` maps an executor to a part of its error message; the other executors run the model.
    """

    title: str
    family: str
    golden: str
    refused: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


_KIMI = "Kimi Linear without experts"
_SAMBAY, _STEP3 = "Phi 4 mini flash", "Step-3's language model without experts"
# Operation -> models with one of it that the integer profile does not define: the table in docs/integer-profile.md.
UNDEFINED: Mapping[str, tuple[str, ...]] = {
    "rms_norm": (_KIMI, _SAMBAY, _STEP3),
    "scale_columns": (_SAMBAY, "Falcon H1"),
    "concat": (_KIMI, _SAMBAY),
    "selective_scan": (_SAMBAY,),
    "layer_norm": (_SAMBAY,),
    "differential_heads": (_SAMBAY,),
}


def _integers(reason: str) -> dict[str, str]:
    """Return refusals by the integer profile and by the accelerator, which runs the same operations."""
    return dict.fromkeys(INTEGERS, reason)


def _recurrent(kind: str) -> dict[str, str]:
    """Return refusals by the executors without recurrent states; those of integers meet the operation ``kind`` first."""
    return _PORTABLE | _integers(f"cannot run {kind} ")


_PORTABLE = {EXECUTORS[1]: "cannot run 'causal_conv'"}
_RECURRENT = _PORTABLE | {"accelerator": "it has no units for recurrent states"}  # the profile defines them

ROWS = (
    Row(title="Llama 1 to 3, TinyLlama, SmolLM 1 and 2", family="llama", golden="grouped_tied"),
    Row(title="Llama 3.1, its rope scaling", family="llama", golden="llama3"),
    Row(title="BitNet b1.58 2B4T", family="bitnet", golden="bitnet/plain", note="squared ReLU"),
    Row(
        title="BitNet b1.58 0.73B (1bitLLM)", family="bitnet", golden="bitnet/silu", note="SiLU; its class says `llama`"
    ),
    Row(title="Qwen 2, 2.5", family="qwen2", golden="qwen2/plain"),
    Row(title="Qwen 2.5, YaRN", family="qwen2", golden="qwen2/yarn"),
    Row(title="Qwen 2, windows in upper layers", family="qwen2", golden="qwen2/window"),
    Row(
        title="Qwen 3",
        family="qwen3",
        golden="qwen3/plain",
        note="Ternary-Bonsai 1.7B, 4B and 8B, too",
    ),
    Row(title="Mistral 0.1", family="mistral", golden="mistral/window", note="a window in every layer"),
    Row(title="Mistral 0.2 and later", family="mistral", golden="mistral/plain"),
    Row(title="SmolLM 3", family="smollm3", golden="smollm3/plain", note="every fourth layer does not rotate"),
    Row(
        title="Phi 3 mini 4k",
        family="phi3",
        golden="phi3/window",
        note="the reader splits q\\|k\\|v and gate\\|up",
    ),
    Row(
        title="Phi 3 mini 128k, Phi 3.5 mini",
        family="phi3",
        golden="phi3/longrope",
        note="LongRoPE's short factors: contexts of up to 4096",
    ),
    Row(
        title="Phi 4 mini",
        family="phi3",
        golden="phi3/partial_longrope",
        note="like Phi 3.5; three quarters of each head are rotated",
    ),
    Row(title="Gemma", family="gemma", golden="gemma/plain"),
    Row(title="Gemma 2", family="gemma2", golden="gemma2/plain"),
    Row(
        title="Gemma 3, its language model",
        family="gemma3_text",
        golden="gemma3_text/plain",
        note="the reader leaves out the vision model",
    ),
    Row(
        title="Qwen 3.5, its language model",
        family="qwen3_5_text",
        golden="qwen3_5_text/plain",
        refused=_RECURRENT,
        note="gated delta nets; the reader leaves out the vision model and the layers that guess",
    ),
    Row(
        title="Qwen3-Next without experts",
        family="qwen3_next",
        golden="qwen3_next/plain",
        refused=_RECURRENT,
        note="gated delta nets",
    ),
    Row(
        title=_KIMI,
        family="kimi_linear",
        golden="kimi_linear/plain",
        refused=_PORTABLE | _integers("it normalizes the output of the linear layers.1.kv_a_proj_with_mqa"),
        note="delta attention, whose channels have decays of their own; attention over latents, which are kept expanded",
    ),
    Row(
        title=_SAMBAY,
        family="phi4flash",
        golden="phi4flash/plain",
        refused=_recurrent("layer_norm"),
        note="SambaY: Mamba 1, differential attention, half of the layers read the states of others",
    ),
    Row(
        title=_STEP3,
        family="step3_text",
        golden="step3_text/plain",
        refused=_integers("it normalizes the output of the linear layers.0.q_low"),
        note="queries of low rank, one key/value head",
    ),
    Row(
        title="Falcon H1",
        family="falcon_h1",
        golden="falcon_h1/plain",
        refused=_recurrent("scale_columns"),
        note="attention and a mixer of Mamba 2 in each layer",
    ),
    Row(
        title="Mamba 2",
        family="mamba2",
        golden="mamba2/plain",
        refused=_RECURRENT,
        note="no attention",
    ),
)

_HEAD = """# Which models run where

This page is written by `python tests/edgedec/families/support/make_family_table.py`, from the table with which
`tests/edgedec/families/test_family_table.py` runs every cell on a random checkpoint. The meaning of "yes" depends on the
column:

* float reference: its logits equal those of `transformers` to 1e-4 (golden files in `make test`, live in
  `make test-compare`);
  Phi 4 mini flash and Step-3, which `transformers` does not have, are compared with the formulas of their papers.
* ONNX: its logits equal those of the reference in prefill, steps and a tree, to 1e-4 with float weights and with int8
  weights; for these, the ids are such that no activation is between two codes, where either is right.
* integer profile: its logits have a correlation above 0.98 with those of the float reference.
* accelerator: its program, interpreted, gives exactly the numbers of the integer profile.

"""
_REASONS = """Each number stands for a refusal, which names one operation (with the numbers of the tests' small models);
[what does not map](integer-profile.md#what-does-not-map) lists all reasons:"""
_TAIL = """
The rope scalings default, linear, llama3, yarn, longrope (up to the original context) and dynamic (up to the context) are
supported. Every other setting that would change the model raises an `UnsupportedError` that names it. Families work with any
weight scheme: int8 and ternary planes are implemented by the executors and tested in `tests/conformance/test_targets.py`.

The states of gated delta nets and of Mamba 1 and 2 run on the [CPU kernels](cpu-kernels.md#recurrent-states) and in the
reference; all other devices refuse them by the operation's name. The [integer profile](integer-profile.md#recurrent-states)
defines those of gated delta nets and of Mamba 2.

`edgedec export --format onnx` writes them with operators of the ONNX standard, for all of these families but Phi 4 mini
flash: a convolution is a `Conv`, a recurrence a `Scan` over the rows of a pass. The states are inputs `past_recurrent.N`
and outputs `present_recurrent.N`, float32, zero before a text and in the order of the graph; a pass must be without padding
and branches. With float weights the logits equal the reference's to 0.0003 of their standard deviation. The folder has no
configuration for onnxruntime-genai, which has no name for such states, and no draft.

The keys and values of Kimi Linear's attention, each as wide as the wider of both, take many times the bytes of the latent
that the checkpoint stores. The cross decoder of Phi 4 mini flash, half of its layers, has no keys and values of its own.
`distil` does not train these two.

Rotated weights of all families are read from [GGUF](gguf.md#rotated-weights). The float reference, ONNX and the GPU
run them, the integer profile defines them, and the accelerator refuses them.

Mixtures of experts of `qwen3_next`, `kimi_linear` and `step3_text` are refused by the setting that says so;
[formats](formats.md#hugging-face-folders) lists other refusals.
"""
_STEPS = """
## Changing this

### A model family

A family is one file in `edgedec/families/`, named after the `model_type` of the Hugging Face configuration. There is
nothing to register. Executors do not depend on families: if the reference, ONNX and the accelerator run the operations,
they run the model.

1. Write `edgedec/families/NAME.py` with one function, `build(config) -> Graph`. If the model is Llama's block with
   changes, `edgedec/families/qwen3.py` is the shortest example: pass `build_decoder` of `edgedec/families/_decoder.py` a
   `DecoderBlock` that describes them. If it cannot describe the change, add a field to it. If the model is not a variant of
   Llama's block, read the configuration with the checked readers of `edgedec/families/_config.py`, and write the operations
   with `GraphBuilder` of `edgedec/families/_builder.py`. Weight names are the checkpoint's; a missing key means the default
   of the `transformers` class. Rotary scaling is in `edgedec/families/_rope.py`, kinds of layers in
   `edgedec/families/_layers.py`.
2. If checkpoints store tensors in another way (fused, packed, under other names), the reader translates them, not the
   family: `quantize/readers/huggingface_layout.py` translates names and splits q|k|v without a copy, and the reader of
   [BitNet checkpoints](quantization.md#the-bitnet-layout) unpacks weights.
3. If the model needs a new operation, see [below](#an-operation). A new attribute of an existing operation is often
   enough. Then every executor must implement or refuse it: `edgedec/reference/float_profile/ops`, `edgedec/onnx/ops`,
   `edgedec/reference/integer_profile/defined.py` (whose refusals also hold for the accelerator),
   `quantize/batch_interpreter.py` and `quantize/distil/torch_graph.py`.
4. Test the family: add configurations to `tests/edgedec/families/support/make_golden.py`, run it once with `torch` and
   `transformers` installed (`.venv/bin/python -m pip install -e '.[compare]'`), commit the small golden files, and add
   the family to `FAMILIES` in `tests/edgedec/families/test_golden_families.py`. If `transformers` does not have the
   family, write its formula in `support/reference_formulas.py` and its configurations in
   `support/make_formula_golden.py` instead.
5. Add a `Row` to `tests/edgedec/families/support/make_family_table.py`, with the messages of the executors that refuse
   the family, and run it: it writes this page.
6. Prove it; the tests run every cell of the table: `.venv/bin/pytest tests/edgedec/families`.

### Features beside ids

A draft head reads a vector of floats beside each id, such as a hidden state of its target. The smallest example is
`tests/support/families/feature_head.py`.

1. `GraphBuilder.features(width)` of `edgedec/families/_builder.py` declares the one input of this kind: the value
   `features`, float32 `[n, width]`, which any operation reads.
2. Passes have it as `Pass.features` of `runtime/protocols.py`, and `TargetInfo.features` is the width, or 0. A pass
   without features, with others, or with values that are not finite is refused by name. `cpu`, `float_reference`,
   `gpu` and the portable graph run the model; accelerators, calibrations, torch, sites and the exporter of ONNX refuse
   it (`check_no_features` of `edgedec/graph/graph.py`).
3. The writer of the bundle calls `require_inputs` of `edgedec/bundle/bundle.py`, so that the manifest requires
   [`pass_features`](bundle-format.md#older-and-newer-bundles). Such a bundle is refused as the model of a run, because
   rows that are computed again from ids alone would lack their features; it is given with `-md`.
4. A plan has the target's input as the item `features`, 4 bytes x width x rows of the widest run. The array of a pass
   is memory of whoever made it.
5. Prove it: `.venv/bin/pytest tests/conformance/test_features.py tests/edgedec/test_pass_features.py`.

### An operation

An operation is data in `edgedec/graph/ops.py` and one file for each executor, which has the name of its `kind`.

1. In `edgedec/graph/ops.py`, write a frozen dataclass. Its docstring is the specification: inputs, outputs, shapes,
   dtypes, formula and source. If the operation has weights, override `weight_names`. If it keeps state, give it a
   `state` field, the name of a `KvState` (keys and values, a row for each position) or of a `RecurrentState` (an array
   that each row replaces by one that it computes from that of the row before it on its path; the reference keeps one
   after each row of a pass, the CPU kernels the inputs of each row).
2. In `edgedec/reference/float_profile/ops/KIND.py`, write `run(op, inputs, context) -> outputs` as plainly as possible.
   The result of a row MUST depend on that row alone (and on the ordered keys that it sees), so that the reference stays
   batch-invariant.
3. In `edgedec/onnx/ops/KIND.py`, write `lower(op, emitter)`. It binds each output:
   `emitter.bound[op.outputs[0]] = ...`. An executor without a file for the kind refuses the model with an
   `UnsupportedError` that names the operation, the layer, and a device that runs the model, so it can be added later.
4. In `edgedec/families/_builder.py`, write a method that appends the operation and declares the shape of its output. An
   operation that any family may need between two of its own, as `hadamard` for rotated weights, is inserted after the
   family has built its graph, by a key of the configuration (`edgedec/families/_hadamard.py`); a key that an older
   edgedec must not ignore is a [feature](bundle-format.md#older-and-newer-bundles).
5. If the operation can be fused, or needs a quantize point, extend `edgedec/graph/passes.py`.
6. Others refuse a model whose operation they do not know: `runtime/gpu/fusion.py` (device `gpu`),
   `quantize/distil/torch_graph.py` (distillation), `quantize/exporters/onnx_graph.py` and
   `quantize/exporters/onnx_recurrent.py`, `quantize/exporters/gguf/architectures.py` and `hw/compiler/lowering.py`. The
   CPU kernels' operators are in `runtime/kernels/operators/`; `runtime/kernels/sessions/operator.py` runs each of them
   before it is used. If the operation has no tensor of its own in another format, check that exporters do not leave it
   out.
7. Prove the formula and its lowering: `.venv/bin/pytest tests/edgedec/reference tests/conformance/test_targets.py`.

For the accelerator:

1. [The integer profile](integer-profile.md) defines the operation in integers:
   `edgedec/reference/integer_profile/ops/KIND.py`. `edgedec/reference/integer_profile/defined.py` says which settings
   have no integer definition, and `edgedec/reference/integer_profile/site.py` gives its values a unit and its constants.
2. `hw/compiler/lowering.py` lowers it to instructions, `hw/compiler/routes.py` finds where its input goes, and
   `hw/compiler/shapes.py` makes constants of its shape for estimates.
3. If it has a unit of its own: a component in the folder of its data path (`hw/vector/`, `hw/attention/`), with its
   `resources` and a test against NumPy; a `Source` or `Sink` in `hw/isa/instructions.py`; its place in `hw/datapath.py`
   or `hw/sink_router.py`; its latency in `hw/compiler/cycles.py`; its arithmetic in `sim/interpreter/units.py`.
4. Prove it; the tests compare the interpreter with the reference, and the RTL with the interpreter:
   `.venv/bin/pytest tests/sim/interpreter tests/sim/verify tests/hw/compiler`.
"""


def document() -> str:
    """Return the text of ``docs/families.md``."""
    reasons: list[str] = []
    lines = ["| model | `model_type` | " + " | ".join(EXECUTORS) + " | |", "|---|---|" + "---|" * (len(EXECUTORS) + 1)]
    for row in ROWS:
        cells = []
        for executor in EXECUTORS:
            reason = row.refused.get(executor)
            if reason is not None and reason not in reasons:
                reasons.append(reason)
            cells.append("yes" if reason is None else f"no ({reasons.index(reason) + 1})")
        lines.append(f"| {row.title} | `{row.family}` | {' | '.join(cells)} | {row.note} |")
    lines += ["", _REASONS, ""]
    lines += [f"{number}. {reason}" for number, reason in enumerate(reasons, 1)]
    return _HEAD + "\n".join(lines) + "\n" + _TAIL + _STEPS


if __name__ == "__main__":
    DOCUMENT.write_text(document(), encoding="utf-8")
