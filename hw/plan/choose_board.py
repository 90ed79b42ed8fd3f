"""The choice of the fastest accelerator for a model on a board."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from typing import Any

from edgedec.board import Board
from edgedec.errors import UnsupportedError, UsageError
from edgedec.graph.ops import Linear
from edgedec.hw.compiler.choose import attend_together, lowered, ports_of, ringed, shape_of, with_sequences
from edgedec.hw.compiler.program import laid_out, lowered_sizes
from edgedec.hw.config import ROWS, AcceleratorConfig
from edgedec.hw.plan.estimate import estimate
from edgedec.reference.integer_profile.model import IntegerModel

__all__ = ["config_for_board"]

_BEAT_BYTES = (4, 8, 16, 32, 64)  # widths of a beat in bytes
_MOST_SLOTS = 8  # largest number of slots
_MOST_SOFTMAX_LANES = 8  # largest number of lanes of the softmax
_ENOUGH = 0.9  # share of the memory's bandwidth; a stream that uses this much need not be twice as wide
_WORTH_A_SLOT = 7  # least slots with which heads that attend together are worth another one
_LEAST_INSTRUCTIONS = 16  # smallest number of instructions of a configuration
_LEAST_CONTEXT = 64  # smallest context that a message proposes
_PREFETCH_BEATS = {True: 4096, False: 1024}  # beats with and without UltraRAM; longer than any wait for a result


def config_for_board(
    model: IntegerModel,
    device: Board,
    *,
    others: Iterable[Board] = (),
    accepts: Callable[[AcceleratorConfig], bool] = lambda config: True,
    texts: int = 1,
    **overrides: Any,
) -> AcceleratorConfig:
    """Return the accelerator for a model on a board, by ``edgedec.hw.plan.estimate``. The result is deterministic.

    It is as wide as the board's memory is fast at the board's clock, or narrower if that does not fit; then it has the
    most slots that fit, up to the board's. Query heads that share keys attend together where that costs no slot, or the
    eighth one: it takes more time to read a long past for each head than a pass of eight tokens saves over one of seven.

    Args:
        model: the model.
        device: the board.
        others: boards, one of which the message names if the model does not fit this one.
        accepts: whether a configuration leaves room for the parts beside the accelerator. If none does, the smallest
            one that fits alone is returned.
        texts: texts that are written at a time, of which a pass has rows as far as there are slots.
        overrides: members of AcceleratorConfig that are fixed; the others are chosen.

    Raises:
        UnsupportedError: the model fits no such accelerator, or does not fit the board's memory; the message names its
            needs, the limits, and the nearest alternative that fits. ``compile_model`` names the cause if no
            configuration runs it.
        UsageError: the overrides are no valid configuration, or have more sequences than the board gets slots.
    """
    trials = _Trials(model)
    beyond, alone = "", None
    most = overrides.get("slots", device.slots or _MOST_SLOTS)
    if overrides.get("sequences", 1) > most:
        raise UsageError(f"sequences must be at most the slots, {most} on {device.name}, not {overrides['sequences']}")
    choices = list(_choices(model, device, overrides, texts))
    if trials.least_bytes > device.memory_bytes:
        del choices[:-1]  # none of them can fit, and one is enough to state the needs
    for choice in choices:
        if choice is not choices[-1] and _is_beyond(device, choice):
            continue
        config, beyond = trials.tried(device, choice)
        if not beyond:
            if accepts(config):
                return config
            alone = config
    if alone is not None:
        return alone
    raise UnsupportedError(
        f"the model does not fit {device.name}: {beyond}; {_nearest(trials, device, others, overrides, texts)}"
    )


def _choices(model: IntegerModel, device: Board, overrides: dict[str, Any], texts: int) -> Iterator[dict[str, Any]]:
    """Yield members of configurations, the preferred ones first."""
    shape = shape_of(model) | overrides
    narrowest = {2: 8, 4: 16}.get(overrides.get("ports", 1), 4)  # a port has at least 4 bytes
    possible = [size for size in _BEAT_BYTES if size >= narrowest and (size >= ROWS or not shape["scaling"])]
    clock = overrides.get("clock_hz", device.clock_hz)
    wide = [size for size in possible if size * clock >= _ENOUGH * device.bandwidth_bytes_s]
    widest = wide[0] if wide else possible[-1]
    ultra = device.has["uram"] > 0
    fixed = {
        "ultra": ultra,
        "clock_hz": clock,
        "burst_beats": device.burst_beats,
        "prefetch_beats": _PREFETCH_BEATS[ultra],
        "inputs": 1 if device.memory_bram36 else AcceleratorConfig.inputs,
    }
    sizes = [overrides["beat_bytes"]] if "beat_bytes" in overrides else [size for size in possible if size <= widest]
    for beat_bytes in reversed(sizes):
        ports = ports_of(beat_bytes, device.ports, device.port_bytes)
        least, most = overrides.get("sequences", 1), device.slots or _MOST_SLOTS
        possible_slots = [overrides["slots"]] if "slots" in overrides else range(least, most + 1)
        for slots, shared in sorted(product(possible_slots, (False, True)), key=_preference, reverse=True):
            members = {**shape, **fixed, "beat_bytes": beat_bytes, "ports": ports, "slots": slots} | overrides
            members = ringed(with_sequences(members, texts))
            if shared and ("shared" in members or not attend_together(members)):
                continue
            yield {"shared": shared, "softmax_lanes": _softmax_lanes(members)} | members


def _preference(choice: tuple[int, bool]) -> tuple[int, bool]:
    """Return the key by which choices of slots and ``shared`` are sorted."""
    slots, shared = choice
    return slots + (shared and slots >= _WORTH_A_SLOT), shared


def _softmax_lanes(members: dict[str, Any]) -> int:
    """Return the lanes that keep up with the stream, in which a group of positions takes ``chunks`` beats."""
    layout = AcceleratorConfig(**{**members, "softmax_lanes": 1}).kv_layout
    lanes = 1
    while lanes < min(_MOST_SOFTMAX_LANES, layout.positions) and lanes * layout.chunks < layout.positions:
        lanes *= 2
    return lanes


def _is_beyond(device: Board, members: dict[str, Any]) -> bool:
    """Return whether a configuration exceeds the board even with the fewest instructions."""
    return bool(estimate(AcceleratorConfig(**{"instructions": _LEAST_INSTRUCTIONS, **members})).beyond(device))


class _Trials:
    """The needs of configurations that run a model. Lowering may take half a second, so it is done once for each.

    Members:
        least_bytes: bytes of the smallest image of any configuration; a byte holds five trits.
    """

    def __init__(self, model: IntegerModel) -> None:
        self.model = model
        self._found: dict[tuple[Any, ...], tuple[AcceleratorConfig, Mapping[str, int]]] = {}
        matrices = [
            matrix
            for op in model.graph.operations
            if isinstance(op, Linear)
            for matrix in model.constants[op.name].matrices
        ]
        self.least_bytes = sum(
            matrix.weight.size if matrix.trits is None else matrix.trits.size // ROWS for matrix in matrices
        )

    def sizes(self, members: dict[str, Any]) -> tuple[AcceleratorConfig, Mapping[str, int]]:
        """Return the configuration, with the instructions that the program needs, and the sizes of its buffers."""
        key = tuple(sorted(members.items()))
        if key not in self._found:
            config, lowering = lowered(self.model, members)
            self._found[key] = (config, lowered_sizes(lowering))
        return self._found[key]

    def tried(self, device: Board, members: dict[str, Any]) -> tuple[AcceleratorConfig, str]:
        """Return the configuration, and the limits that it exceeds, or an empty text."""
        config, sizes = self.sizes(members)
        needs = estimate(config)
        exceeded = []
        for name in needs.beyond(device):
            of = f"of {device.has[name]} at most {device.usable(name)} can be used"
            if name == "bram36" and device.memory_bram36:
                of += f" where {device.memory_bram36} are the memory"
            exceeded.append(f"it takes {needs.on(device)[name]} {name}, {of}")
        size = laid_out(sizes, config.ports)[1]
        if size > device.memory_bytes:
            exceeded.append(
                f"program, weights, cache and results take {size} bytes, the memory has {device.memory_bytes}"
            )
        with_ = f"with slots={config.slots}, beat_bytes={config.beat_bytes} and context={config.context} "
        return config, with_ + " and ".join(exceeded) if exceeded else ""

    def fits(self, device: Board, overrides: dict[str, Any], texts: int) -> bool:
        """Return whether the smallest of a board's accelerators fits."""
        if self.least_bytes > device.memory_bytes:
            return False
        *_, least = _choices(self.model, device, overrides, texts)
        return not _is_beyond(device, least) and not self.tried(device, least)[1]


def _nearest(trials: _Trials, device: Board, others: Iterable[Board], overrides: dict[str, Any], texts: int) -> str:
    """Return the nearest alternative that fits: fewer positions, or another board."""
    context = overrides.get("context", AcceleratorConfig.context) // 2
    *_, least = _choices(trials.model, device, overrides, texts)
    weights = trials.sizes(least)[1]["image"]
    while context >= _LEAST_CONTEXT and weights <= device.memory_bytes:
        if trials.fits(device, {**overrides, "context": context}, texts):
            each = (
                f", {context // texts} positions for each of {texts} texts (--ctx-size, --parallel)"
                if texts > 1
                else ""
            )
            return f"it fits with context={context}{each}"
        context //= 2
    for other in sorted(others, key=lambda board: board.memory_bytes):
        if other is not device and trials.fits(other, overrides, texts):
            return f"it fits {other.name}"
    return "use a smaller model, or a larger board"
