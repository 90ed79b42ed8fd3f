"""Run whole tokens through the RTL of a small top: all integers equal the reference's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgedec.errors import DeviceError
from edgedec.hw.compiler.choose import config_for
from edgedec.hw.isa.instructions import Destination
from edgedec.runtime.driver.driver import BEST, NO_LOGITS
from edgedec.schemes import Int8Scheme, Scheme, TernaryScheme
from edgedec.sim.verify.cocotb_runner import missing_tools
from edgedec.sim.verify.token_run import TokenRun
from edgedec.sim.verify.verification import TRACED_BITS
from tests.edgedec.reference.integer_profile.support.make_models import float_model, prepared
from tests.sim.support.make_small_top import CONFIG

# The top takes minutes to compile.
pytestmark = [pytest.mark.nightly, pytest.mark.skipif(bool(missing_tools()), reason=f"missing: {missing_tools()}")]

_GEMMA: Mapping[str, Any] = {
    **{"attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0, "sliding_window": 8},
    **{"tie_word_embeddings": True, "attention_bias": False},
}
_GROUPS_128 = TernaryScheme(group_size=128)
MODELS: Mapping[str, tuple[Scheme, Mapping[str, Any]] | tuple[Scheme, Mapping[str, Any], Scheme]] = {
    "native": (TernaryScheme(), {"attention_bias": False}),
    "planes2": (TernaryScheme(planes=2, group_size=64), {}),
    "planes3": (TernaryScheme(planes=3, group_size=64), {"rope_interleaved": True}),
    "int8": (Int8Scheme(), {"mlp_bias": True}),
    "gemma2": (TernaryScheme(), {"model_type": "gemma2", "query_pre_attn_scalar": 8, **_GEMMA}),
    "gemma3": (Int8Scheme(), {"model_type": "gemma3_text", "sliding_window_pattern": 2, **_GEMMA}),
    "bonsai": (_GROUPS_128, {"model_type": "qwen3", "tie_word_embeddings": True}, _GROUPS_128),
}


def opened(kind: str, memory: str = "ideal") -> TokenRun:
    """Open a model; one that needs units that most models do not need has a top of its own."""
    scheme, changes, *embedding = MODELS[kind]
    model = prepared(*float_model(scheme, {"head_dim": 8, **changes}, *embedding))
    units = {name: getattr(config_for(model), name) for name in ("head_norms", "post_norms", "score_cap", "gelu")}
    return TokenRun(model, replace(CONFIG, **units), memory=memory)


@pytest.mark.parametrize("kind", MODELS)
def test_prefill_decoding_and_trees_equal_the_reference(kind: str) -> None:
    """Run a prefill of 16 (all but the last pass without logits), decoded tokens, a partly accepted tree of 4, a
    token.
    """
    run = opened(kind)
    report = run.run([(7 * i) % 41 for i in range(16)], 4)
    assert [prefill_pass.cycles > 0 for prefill_pass in report.prefill] == [True] * 4
    assert len(report.tokens) == 4
    run.tree([1, 2, 3, 4], [-1, 0, 0, 2], keep=[0, 2, 3])
    run.tree([5, 6, 7, 8], [-1, 0, 1, 0], keep=[0, 3])
    run.run([9], 1)
    compared = run.verified.compared
    assert set(compared) >= {
        "matrix outputs",
        "codes",
        "scales",
        "attention outputs",
        "residuals",
        "logits",
        "best ids",
    }
    assert all(compared.values())


@pytest.mark.parametrize("kind", ["native", "int8"])
def test_passes_with_any_mask_equal_the_reference(kind: str) -> None:
    """Run rows that see later ones, as in a block that is denoised, and rows that do not see each other below one row."""
    run = opened(kind)
    run.run([3, 1, 4, 1, 5], 1)
    ids, first = np.array([2, 6, 5, 3], np.int32), run.verified.driver.length
    diagonal, logits = np.eye(4, dtype=np.bool_), []
    for seen in ([], [(0, 3), (1, 0), (1, 2)], [(3, 0), (3, 2)]):
        mask = diagonal.copy()
        for row, other in seen:
            mask[row, other] = True
        positions = np.arange(first, first + 4, dtype=np.int32)
        logits.append(run.verified.forward(ids, positions=positions, visible=mask)[1].values.copy())
    changed = [(rows != logits[0]).any(axis=1).tolist() for rows in logits[1:]]
    assert changed == [[True, True, False, False], [False, False, False, True]]
    run.verified.commit(np.array([0, 1], np.int32))
    run.run([9], 1)


@pytest.mark.parametrize("memory", ["ddr", "flat"])
def test_slower_memories_change_no_integer(memory: str) -> None:
    slow, fast = opened("native", memory), opened("native")
    ours, theirs = slow.run([1, 2, 3, 4, 5], 2), fast.run([1, 2, 3, 4, 5], 2)
    assert ours.tokens == theirs.tokens
    assert ours.total(ours.decode)["cycles"] > theirs.total(theirs.decode)["cycles"]


def test_a_difference_is_reported_with_its_place() -> None:
    """Change one gain, which changes codes."""
    run = opened("native")
    driver = run.verified.driver
    gains = next(of for of in run.program.instructions if of["destination"] == Destination.GAINS)
    changed_image = run.program.image.copy()
    changed_image.reshape(-1)[gains["start"] * CONFIG.beat_bytes + 1] ^= 0x20
    driver.regions["image"].put(changed_image)
    with pytest.raises(DeviceError, match=r"instruction \d+ \(VECTOR .*differ at slot 0, element"):
        run.run([1, 2, 3], 2)


def failed(run: TokenRun, message: str) -> None:
    """Run a pass that gives up with this message; after a soft reset the next one is clean."""
    driver = run.verified.driver
    ids = np.array([1, 2], np.int32)
    with pytest.raises(DeviceError, match=message):
        driver.forward(ids, logits=BEST)


def test_an_injected_read_error_names_the_instruction() -> None:
    run = opened("native")
    image = run.verified.driver.regions["image"].address
    run.simulation.inject_error(image + 2048, 64, writes=False)
    failed(run, r"gave up in instruction \d+ \(READ .*: a read was answered with an error at 0x")
    run.simulation.reset()


def test_a_write_error_is_named() -> None:
    run = opened("native")
    cache = run.verified.driver.regions["cache"]
    run.simulation.inject_error(cache.address, cache.array.size, reads=False)
    failed(run, "a write was answered with an error")


def test_the_watchdog_notices_a_stalled_port() -> None:
    """Check that the next pass after a soft reset is right."""
    run = opened("native")
    driver = run.verified.driver
    driver.registers.write("watchdog_limit", 3000)
    run.simulation.inject_stall(0, first_cycle=run.simulation.cycles + 300, cycles=8000)
    failed(run, r"instruction \d+ .*the watchdog expired")
    run.simulation.run(9000)
    driver.reset()
    driver.registers.write("watchdog_limit", 0)
    forget_recorded(run)
    assert run.run([1, 2, 3], 2).tokens


def forget_recorded(run: TokenRun) -> None:
    """Clear the records of a pass that was given up at the trace ports."""
    for port in TRACED_BITS:
        run.recorded(port)


@pytest.mark.parametrize("byte", [243, 250, 255])
def test_a_damaged_weight_is_named(byte: int) -> None:
    """Damage a byte of a ternary matrix in its last beat, where nothing else detects it."""
    run = opened("native")
    driver = run.verified.driver
    weights = next(of for of in run.program.instructions if of["destination"] == Destination.WEIGHTS)
    changed_image = run.program.image.copy()
    changed_image.reshape(-1)[(weights["start"] + weights["beats"]) * CONFIG.beat_bytes - 1] = byte
    driver.regions["image"].put(changed_image)
    failed(
        run,
        r"gave up in instruction \d+ \(.*: a byte of ternary weights does not encode five trits; reset it, and load",
    )
    driver.reset()
    driver.regions["image"].put(run.program.image)
    forget_recorded(run)
    assert run.run([1, 2, 3], 2).tokens


@pytest.mark.parametrize("name", ["program", "image", "kv", "input", "output"])
@pytest.mark.parametrize("change", [1 << 6, 1 << 12, 1 << 40])
def test_an_impossible_address_is_refused(name: str, change: int) -> None:
    run = opened("native")
    driver = run.verified.driver
    address = driver.registers.read(f"{name}_address")
    driver.registers.write(f"{name}_address", address ^ change)
    failed(run, f"(an address is not a multiple .*{name}_address|output_address is) {address ^ change:#x}")
    driver.reset()
    driver.registers.write(f"{name}_address", address)
    assert run.run([1, 2, 3], 2).tokens


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"slots": 0}, "no slots, or too many"),
        ({"slots": 5}, "no slots, or too many"),
        ({"committed": 45, "slots": 4}, "a position is past the cache"),
    ],
)
def test_impossible_passes_are_refused(change: dict[str, int], message: str) -> None:
    run = opened("native")
    driver = run.verified.driver
    driver.registers.write_fields("pass_parameters", **{"slots": 1, "logits": NO_LOGITS, **change})
    driver.ring("start", "done")
    with pytest.raises(DeviceError, match=message):
        driver.answer()
    driver.reset()
    assert run.run([1, 2, 3], 2).tokens


def test_a_program_of_another_configuration_or_cut_short_is_refused() -> None:
    run = opened("native")
    driver = run.verified.driver
    code = np.frombuffer(run.program.code, np.uint8)
    changed_code = code.copy()
    changed_code[8] ^= 1  # a bit of the hash
    driver.regions["program"].put(changed_code)
    failed(run, "the program is of another configuration")
    driver.reset()
    driver.regions["program"].put(code)
    driver.registers.write("program_bytes", len(code) - 32)
    failed(run, "the program is cut short")
    driver.reset()
    driver.registers.write("program_bytes", len(code))
    assert run.run([1, 2, 3], 2).tokens
