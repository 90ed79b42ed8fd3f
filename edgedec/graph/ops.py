"""The operations of a model graph, as frozen data without behaviour.

Each executor has one file per operation, named after ``kind``: ``reference/float_profile/ops/`` defines the result,
``onnx/ops/`` lowers the operation. In shapes, n is the number of rows (tokens) of a pass, and r the number of rows whose
logits are requested. ``RmsNorm`` and ``GatedActivation`` have the names of the components in ``hw/vector/`` that compute
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from edgedec.errors import UnsupportedError
from edgedec.schemes import FloatScheme, Scheme

__all__ = [
    "Activation",
    "Add",
    "Attention",
    "CausalConv",
    "Concat",
    "DecayBy",
    "DifferentialHeads",
    "Embed",
    "GatedActivation",
    "GatedDeltaRule",
    "GatedRmsNorm",
    "Hadamard",
    "LayerNorm",
    "Linear",
    "LowRankKeys",
    "Operation",
    "QuantizeActivation",
    "RmsNorm",
    "Rope",
    "ScaleColumns",
    "SelectRows",
    "SelectiveScan",
    "SigmoidGate",
    "Split",
]

Activation = Literal["silu", "relu2", "gelu_tanh"]
DecayBy = Literal["head", "channel"]  # the parts of a state with decays of their own


@dataclass(frozen=True, kw_only=True)
class Operation:
    """An operation. Its name tells its place in the model, and error messages print it."""

    kind: ClassVar[str]
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def weight_names(self) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True, kw_only=True)
class Embed(Operation):
    """(ids int32 [n]) -> float32 [n, width]: rows of the weight [vocab, width], or of the pass's embeds, times ``scale``."""

    kind: ClassVar[str] = "embed"
    weight: str
    scale: float = 1.0

    @property
    def weight_names(self) -> tuple[str, ...]:
        return (self.weight,)


@dataclass(frozen=True, kw_only=True)
class RmsNorm(Operation):
    """(x float32 [n, heads * width]) -> x / sqrt(mean(x^2) + eps) * (offset + weight [width]), the same shape.

    The mean is over ``width`` columns. With several heads, each is normalized separately, with the same weight.
    Source: 1910.07467.
    """

    kind: ClassVar[str] = "rms_norm"
    weight: str
    eps: float
    heads: int = 1
    offset: float = 0.0

    @property
    def weight_names(self) -> tuple[str, ...]:
        return (self.weight,)


@dataclass(frozen=True, kw_only=True)
class LayerNorm(Operation):
    """(x float32 [n, width]) -> (x - m) / sqrt(mean((x - m)^2) + eps) * weight + bias, m = mean(x), the same shape.

    Source: 1607.06450.
    """

    kind: ClassVar[str] = "layer_norm"
    weight: str  # [width]
    bias: str  # [width]
    eps: float

    @property
    def weight_names(self) -> tuple[str, ...]:
        return (self.weight, self.bias)


@dataclass(frozen=True, kw_only=True)
class QuantizeActivation(Operation):
    """(x float32 [n, width]) -> (codes int8 [n, width], scale float32 [n, 1]), one scale per token: absmax / 127.

    codes = round half to even of x / scale; a row of zeros has scale 0 and codes 0.
    """

    kind: ClassVar[str] = "quantize_activation"


@dataclass(frozen=True, kw_only=True)
class Linear(Operation):
    """(x float32 [n, in]) or (codes, scale) -> one float32 [n, out] per weight [out, in]: x @ weight.T + bias.

    Several weights read the same input: q|k|v and gate|up after ``passes.fuse_linears``. With a quantized scheme, the inputs
    are the outputs of ``QuantizeActivation``, and products are summed exactly in integers (per group of columns, if the
    scheme has groups) before any scale is applied. With ``soft_cap``, an output y becomes soft_cap * tanh(y / soft_cap).
    """

    kind: ClassVar[str] = "linear"
    weights: tuple[str, ...]
    biases: tuple[str | None, ...]
    schemes: tuple[Scheme, ...] = (FloatScheme(),)
    soft_cap: float | None = None

    @property
    def weight_names(self) -> tuple[str, ...]:
        return (*self.weights, *(bias for bias in self.biases if bias))


@dataclass(frozen=True, kw_only=True)
class Hadamard(Operation):
    """(x float32 [n, width]) -> H(x * signs), the same shape; with ``inverse``, H(x) * signs.

    H transforms each ``block`` of columns by the normalized Walsh-Hadamard matrix in Sylvester's order, whose element (i, j)
    is (-1)^popcount(i & j) / sqrt(block). It is its own inverse. ``signs`` is a weight [width] of 1 and -1; None: no signs.

    The order of the float operations is fixed, so that all executors give the same bits: for distance = 1, 2, 4, ...,
    block / 2, the values a and b of each two columns at this distance become a + b and a - b. Then every value is multiplied
    by float32(1 / sqrt(block)).

    Raises:
        UnsupportedError: ``block`` is not a power of two from 2 to ``MOST_BLOCK``.
    """

    kind: ClassVar[str] = "hadamard"
    MOST_BLOCK: ClassVar[int] = 1 << 16
    block: int
    signs: str | None = None
    inverse: bool = False

    def __post_init__(self) -> None:
        if not 2 <= self.block <= self.MOST_BLOCK or self.block & (self.block - 1):
            raise UnsupportedError(
                f"operation {self.name}: the block must be a power of two from 2 to {self.MOST_BLOCK}, not {self.block}"
            )

    @property
    def weight_names(self) -> tuple[str, ...]:
        return (self.signs,) if self.signs else ()


@dataclass(frozen=True, kw_only=True)
class Rope(Operation):
    """(x float32 [n, heads * head_dim], positions int32 [n]) -> the same shape, pairs rotated by position * frequency.

    The first 2 * pairs columns of a head are rotated and multiplied by ``magnitude``. The other columns, which exist if
    there are fewer pairs than head_dim / 2, do not change. With the layout ``half``, pair i has the columns (i, i + pairs)
    of a head (Hugging Face); with ``interleaved``, (2i, 2i + 1) (llama2.c, GGUF). Source: 2104.09864.
    """

    kind: ClassVar[str] = "rope"
    heads: int
    head_dim: int
    layout: Literal["half", "interleaved"]
    inverse_frequencies: tuple[float, ...]  # [pairs], rope scaling already applied
    magnitude: float = 1.0


@dataclass(frozen=True, kw_only=True)
class LowRankKeys(Operation):
    """(k float32 [n, kv_heads * head_dim]) -> the same shape: keys rebuilt from their numbers in the basis of the state.

    A number is the product of a key and a direction, rounded as the state stores it; ``low_rank.py`` has the order
    of the sums. The rotation and the attention that fills the state read the rebuilt keys, so the state needs to store the
    numbers only. Source: 2410.21465.
    """

    kind: ClassVar[str] = "low_rank_keys"
    state: str


@dataclass(frozen=True, kw_only=True)
class Attention(Operation):
    """(q [n, heads * head_dim], k and v [n, kv_heads * head_dim]) -> float32 [n, heads * head_dim].

    Append k and v to the state, and compute softmax(q . keys * scale) . values over the keys that each query sees: all
    committed rows, and the rows of its pass that its tree admits, in order. Query head h reads key/value head
    h * kv_heads // heads. With the state's ``window``, a query at position p sees the positions above p - window and the
    first ``sinks``. With the state's ``selection``, it attends to those that the selection chooses of the keys that it sees.
    With ``soft_cap``, a scaled score s becomes soft_cap * tanh(s / soft_cap). Source: 2408.00118.

    Attentions with the same state read the same k and v, which are appended once (2405.05254).
    """

    kind: ClassVar[str] = "attention"
    state: str
    heads: int
    scale: float
    soft_cap: float | None = None


@dataclass(frozen=True, kw_only=True)
class GatedActivation(Operation):
    """(gate, up float32 [n, width]) -> activation(gate) * up.

    silu: z / (1 + exp(-z)); relu2: max(z, 0)^2; gelu_tanh: z / 2 * (1 + tanh(sqrt(2 / pi) * (z + 0.044715 * z^3))).
    """

    kind: ClassVar[str] = "gated_activation"
    activation: Activation


@dataclass(frozen=True, kw_only=True)
class GatedRmsNorm(Operation):
    """(gate, x float32 [n, width]) -> y / sqrt(mean(y^2) + eps) * weight [width], y = silu(gate) * x, the same shape.

    Each of ``groups`` equal parts of the columns has a mean of its own. Source: 2405.21060.
    """

    kind: ClassVar[str] = "gated_rms_norm"
    weight: str
    eps: float
    groups: int = 1

    @property
    def weight_names(self) -> tuple[str, ...]:
        return (self.weight,)


@dataclass(frozen=True, kw_only=True)
class Add(Operation):
    """(a, b float32, equal shapes) -> a + b."""

    kind: ClassVar[str] = "add"


@dataclass(frozen=True, kw_only=True)
class SelectRows(Operation):
    """(x float32 [n, width], rows int32 [r]) -> x[rows]. The following operations compute only these rows."""

    kind: ClassVar[str] = "select_rows"


@dataclass(frozen=True, kw_only=True)
class Split(Operation):
    """(x float32 [n, heads * sum of widths]) -> one float32 [n, heads * width] for each of ``widths``.

    Each head's columns are taken apart in order, and the parts of all heads are put side by side.
    """

    kind: ClassVar[str] = "split"
    widths: tuple[int, ...]
    heads: int = 1


@dataclass(frozen=True, kw_only=True)
class Concat(Operation):
    """(float32 [n, heads * width] each) -> float32 [n, heads * sum of widths and gaps]: columns side by side, head by head.

    Inputs that ``shared`` marks are [n, width], and each head gets all of their columns. ``gaps`` columns of zeros follow
    each input. Without ``shared`` no input is, and without ``gaps`` there are none.

    Raises:
        UnsupportedError: ``shared`` or ``gaps`` do not fit the inputs, or a gap is negative.
    """

    kind: ClassVar[str] = "concat"
    heads: int = 1
    shared: tuple[bool, ...] = ()
    gaps: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name, values in (("shared", self.shared), ("gaps", self.gaps)):
            if len(values) not in (0, len(self.inputs)):
                raise UnsupportedError(
                    f"operation {self.name}: {name} has {len(values)} entries for {len(self.inputs)} inputs"
                )
        if any(gap < 0 for gap in self.gaps):
            raise UnsupportedError(f"operation {self.name}: gaps must not be negative, as in {self.gaps}")

    @property
    def plain(self) -> bool:
        """True if the inputs' columns simply stand side by side."""
        return self.heads == 1 and not any(self.gaps)

    def parts(self) -> tuple[tuple[str, bool, int], ...]:
        """Return for each input its name, whether the heads share it, and the columns of zeros after it."""
        count = len(self.inputs)
        return tuple(zip(self.inputs, self.shared or (False,) * count, self.gaps or (0,) * count, strict=True))


@dataclass(frozen=True, kw_only=True)
class DifferentialHeads(Operation):
    """(x float32 [n, pairs * 2 * width]) -> float32 [n, pairs * width]: the first part of each pair less some of the second.

    The second part is multiplied by exp(sum(q1 * k1)) - exp(sum(q2 * k2)) + ``start``, where ``factors`` names the weights
    q1, k1, q2 and k2, all of one length. Source: 2410.05258.
    """

    kind: ClassVar[str] = "differential_heads"
    pairs: int
    factors: tuple[str, str, str, str]
    start: float

    @property
    def weight_names(self) -> tuple[str, ...]:
        return self.factors


@dataclass(frozen=True, kw_only=True)
class ScaleColumns(Operation):
    """(x float32 [n, sum of widths]) -> the same shape, columns multiplied, ``widths[0]`` by ``factors[0]`` and so on."""

    kind: ClassVar[str] = "scale_columns"
    widths: tuple[int, ...]
    factors: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class SigmoidGate(Operation):
    """(gate, x float32 [n, width]) -> x / (1 + exp(-gate)), the same shape."""

    kind: ClassVar[str] = "sigmoid_gate"


@dataclass(frozen=True, kw_only=True)
class CausalConv(Operation):
    """(x float32 [n, channels]) -> silu(bias + sum over k of weight[:, 0, k] * x at t - kernel + 1 + k), the same shape.

    Each channel is convolved with its own row of the weight [channels, 1, kernel] along the path of a row: t counts the rows
    that it sees, itself last. The state, [kernel - 1, channels], has the inputs of the rows before; they are zero before
    the first. The terms are added in the order of k. Source: 2312.00752.
    """

    kind: ClassVar[str] = "causal_conv"
    state: str
    weight: str
    bias: str | None = None

    @property
    def weight_names(self) -> tuple[str, ...]:
        return (self.weight, self.bias) if self.bias else (self.weight,)


@dataclass(frozen=True, kw_only=True)
class SelectiveScan(Operation):
    """(x [n, heads * head_dim], b and c [n, groups * size], step [n, heads]) -> float32 [n, heads * head_dim].

    For each head, with the row's d = clip(log(1 + exp(step + step_bias)), *step_limits), the state S [head_dim, size]
    becomes exp(-exp(decay) * d) * S + d * outer(x, b), and the output is S @ c + skip * x. Head h reads group
    h * groups // heads. A row's S follows from that of the row before it on its path; S is zero before the first. This is
    the recurrent form of state space duality (2405.21060).

    With ``decay_by`` "channel", each of ``size`` columns of a head's state has a decay of its own, as in Mamba 1, whose
    heads have one channel each, and share b and c (2312.00752).
    """

    kind: ClassVar[str] = "selective_scan"
    state: str
    heads: int
    groups: int
    decay: str  # [heads], or by channel [heads, size]: the logarithm of the decay's rate
    skip: str  # [heads]
    step_bias: str  # [heads]
    step_limits: tuple[float, float] = (0.0, float("inf"))
    decay_by: DecayBy = "head"

    @property
    def weight_names(self) -> tuple[str, ...]:
        return (self.decay, self.skip, self.step_bias)


@dataclass(frozen=True, kw_only=True)
class GatedDeltaRule(Operation):
    """(q, k [n, key_heads * key_dim], v [n, heads * value_dim], rate, step [n, heads]) -> float32 [n, heads * value_dim].

    For each head, with k and q of key head h * key_heads // heads divided by sqrt(their squares' sum + 1e-6), q also by
    sqrt(key_dim), and b = 1 / (1 + exp(-rate)), the state S [key_dim, value_dim] becomes
    D + outer(k, b * (v - D.T @ k)) with D = exp(-exp(decay) * log(1 + exp(step + step_bias))) * S; the output is S.T @ q.
    A row's S follows from that of the row before it on its path; S is zero before the first. Source: 2412.06464.

    With ``decay_by`` "channel", step and step_bias have key_dim columns for each head, one for each row of S. Source:
    2510.26692 (Kimi Delta Attention).
    """

    kind: ClassVar[str] = "gated_delta_rule"
    state: str
    heads: int
    key_heads: int
    decay: str  # heads values in any shape, the logarithm of the decay's rate
    step_bias: str  # [heads], or by channel [heads * key_dim]
    decay_by: DecayBy = "head"

    @property
    def weight_names(self) -> tuple[str, ...]:
        return (self.decay, self.step_bias)

    @property
    def steering(self) -> tuple[str, ...]:
        """Inputs with one column for each head, which set what a head keeps and writes."""
        return self.inputs[3:] if self.decay_by == "head" else self.inputs[3:4]
