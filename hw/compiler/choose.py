"""The accelerator that suits a model: the smallest one, for simulation and tests, or the fastest one of a board."""

from collections.abc import Iterator
from typing import Any

from edgedec.errors import UnsupportedError
from edgedec.hw.compiler.lowering import Lowering
from edgedec.hw.compiler.program import laid_out, lowered_sizes
from edgedec.hw.config import ROWS, AcceleratorConfig
from edgedec.hw.estimate import BOARDS, Board, estimate
from edgedec.ops import Attention, Linear, QuantizeActivation
from edgedec.reference.integer_profile.model import IntegerModel

__all__ = ["config_for", "config_for_board"]

_MOST_TILE_ROWS = 1280
_MOST_INSTRUCTIONS = 1 << 16
_BEAT_BYTES = (4, 8, 16, 32, 64)
_SLOTS = (8, 4, 2, 1)
_MOST_SOFTMAX_LANES = 8
_ENOUGH = 0.9  # of the memory's bandwidth: a stream that takes so much need not be twice as wide
_LEAST_CONTEXT = 64  # that is looked at to say what would fit
_PREFETCH_BEATS = {True: 4096, False: 1024}  # with and without UltraRAM: longer than any wait for a result


def config_for(model: IntegerModel, **overrides: Any) -> AcceleratorConfig:
    """Widths, heads, tile, kinds of weights and program length as the model needs them; the rest by default.

    Args:
        overrides: members of AcceleratorConfig that are wanted otherwise.

    Raises:
        UnsupportedError: no configuration runs the model; as ``compile_model``.
        UsageError: the overrides make no configuration.
    """
    found = _shape(model) | {"ports": _ports(overrides.get("beat_bytes", AcceleratorConfig.beat_bytes), 4, 4)}
    if "instructions" in overrides:
        return AcceleratorConfig(**(found | overrides))
    return _lowered(model, found | overrides)[0]


def config_for_board(model: IntegerModel, device: Board, **overrides: Any) -> AcceleratorConfig:
    """The accelerator for a model on a board, by ``edgedec.hw.estimate``. Deterministic.

    As wide as the board's memory is fast at the board's clock, or narrower where that does not fit; then with as many slots
    as fit: 8, 4, 2 or 1.

    Args:
        overrides: members of AcceleratorConfig that are wanted otherwise; what is chosen is chosen among the others.

    Raises:
        UnsupportedError: the model fits no such accelerator, or does not fit the board's memory: names what it takes, what
            there is, and the nearest that fits. As ``compile_model`` if no configuration runs the model.
        UsageError: the overrides make no configuration.
    """
    beyond = ""
    for choice in _choices(model, device, overrides):
        config, beyond = _tried(model, device, choice)
        if not beyond:
            return config
    raise UnsupportedError(f"the model does not fit {device.name}: {beyond}; {_nearest(model, device, overrides)}")


def _shape(model: IntegerModel) -> dict[str, Any]:
    """What the model says of the configuration."""
    graph = model.graph
    states = [graph.states[op.state] for op in graph.operations if isinstance(op, Attention)]
    if not states:
        raise UnsupportedError("the accelerator cannot run a graph without attention: give it a layer")
    matrices = [
        matrix for op in graph.operations if isinstance(op, Linear) for matrix in model.constants[op.name].matrices
    ]
    widths = [graph.values[op.inputs[0]].shape[1] for op in graph.operations if isinstance(op, QuantizeActivation)]
    most_rows = max(len(matrix.weight) for matrix in matrices)
    kv_heads = max(state.kv_heads for state in states)
    heads = max(op.heads for op in graph.operations if isinstance(op, Attention))
    hidden = graph.values[next(iter(graph.operations)).outputs[0]].shape[1]
    return {
        "width": max(width for width in widths if isinstance(width, int)),
        "hidden": hidden,
        "heads": -(-heads // kv_heads) * kv_heads,
        "kv_heads": kv_heads,
        "head_dim": states[0].head_dim,
        "scaling": any(matrix.groups is not None for matrix in matrices),
        "per_row": any(matrix.trits is None for matrix in matrices),
        "tile_rows": min(_MOST_TILE_ROWS, -(-2 * most_rows // (2 * ROWS)) * 2 * ROWS),
    }


def _ports(beat_bytes: int, most: int, port_bytes: int) -> int:
    """As many ports of at least so many bytes."""
    return min(most, max(1, beat_bytes // port_bytes))


def _lowered(model: IntegerModel, members: dict[str, Any]) -> tuple[AcceleratorConfig, Lowering]:
    """With as many instructions as the program has."""
    lowering = Lowering(model, AcceleratorConfig(**(members | {"instructions": _MOST_INSTRUCTIONS})))
    lowering.run()
    needed = -(-len(lowering.out.instructions) // 16) * 16
    return AcceleratorConfig(**({"instructions": needed} | members)), lowering


def _choices(model: IntegerModel, device: Board, overrides: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Members of configurations, those that are wanted most first."""
    shape = _shape(model) | overrides
    possible = [size for size in _BEAT_BYTES if size >= ROWS or not shape["scaling"]]
    clock = overrides.get("clock_hz", device.clock_hz)
    wide = [size for size in possible if size * clock >= _ENOUGH * device.bandwidth_bytes_s]
    widest = wide[0] if wide else possible[-1]
    ultra = device.has["uram"] > 0
    fixed = {"ultra": ultra, "clock_hz": clock, "prefetch_beats": _PREFETCH_BEATS[ultra]}
    sizes = [overrides["beat_bytes"]] if "beat_bytes" in overrides else [size for size in possible if size <= widest]
    for beat_bytes in reversed(sizes):
        ports = _ports(beat_bytes, device.ports, device.port_bytes)
        for slots in [overrides["slots"]] if "slots" in overrides else _SLOTS:
            members = {**shape, **fixed, "beat_bytes": beat_bytes, "ports": ports, "slots": slots} | overrides
            yield {"softmax_lanes": _softmax_lanes(members)} | members


def _softmax_lanes(members: dict[str, Any]) -> int:
    """As many as keep up with the stream: a group of positions is ``chunks`` beats."""
    layout = AcceleratorConfig(**{**members, "softmax_lanes": 1}).kv_layout
    lanes = 1
    while lanes < min(_MOST_SOFTMAX_LANES, layout.positions) and lanes * layout.chunks < layout.positions:
        lanes *= 2
    return lanes


def _tried(model: IntegerModel, device: Board, members: dict[str, Any]) -> tuple[AcceleratorConfig, str]:
    """The configuration, and what it takes too much of, or nothing."""
    config, lowering = _lowered(model, members)
    needs = estimate(config)
    found = []
    for name in needs.beyond(device):
        most = int(device.has[name] * device.most.get(name, 1.0))
        found.append(f"it takes {needs.on(device)[name]} {name}, of {device.has[name]} at most {most} can be used")
    size = laid_out(lowered_sizes(lowering), config.ports)[1]
    if size > device.memory_bytes:
        found.append(f"program, weights, cache and results take {size} bytes, the memory has {device.memory_bytes}")
    with_ = f"with slots={config.slots}, beat_bytes={config.beat_bytes} and context={config.context} "
    return config, with_ + " and ".join(found) if found else ""


def _nearest(model: IntegerModel, device: Board, overrides: dict[str, Any]) -> str:
    """What would fit: the same with fewer positions, or else another board."""
    context = overrides.get("context", AcceleratorConfig.context) // 2
    *_, least = _choices(model, device, overrides)
    weights = lowered_sizes(_lowered(model, least)[1])["image"]
    while context >= _LEAST_CONTEXT and weights <= device.memory_bytes:
        if _fits(model, device, {**overrides, "context": context}):
            return f"it fits with context={context}"
        context //= 2
    for other in sorted(BOARDS.values(), key=lambda board: board.memory_bytes):
        if other is not device and _fits(model, other, overrides):
            return f"it fits {other.name}"
    return "it fits no board that is known: use a smaller model"


def _fits(model: IntegerModel, device: Board, overrides: dict[str, Any]) -> bool:
    """Whether the smallest of a board's accelerators does."""
    *_, least = _choices(model, device, overrides)
    return not _tried(model, device, least)[1]
