"""Test the accelerator as a target, on the interpreter of its program.

tests/conformance/test_targets.py has what all targets share.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.bundle.bundle import Bundle
from edgedec.errors import BudgetError, DeviceError, ToolError, UnsupportedError, UsageError
from edgedec.host.install_hint import install_extra
from edgedec.hw.compiler.host import Results
from edgedec.hw.plan.generator import HardwareGenerator
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from edgedec.reference.integer_profile.head import sum_of_exponentials, sum_shift
from edgedec.reference.integer_profile.values import Logits
from edgedec.runtime.accelerator.float_logits import float_logits, log_sums
from edgedec.runtime.accelerator.memories import board_memories
from edgedec.runtime.accelerator.model import buffer_bytes, chosen_config, prepare_model
from edgedec.runtime.accelerator.opening import memory_model
from edgedec.runtime.accelerator.options import AcceleratorOptions, check_memory, parse_configuration
from edgedec.runtime.planning.planning import make_plan
from edgedec.runtime.protocols import I32, Limits, Pass, PassResult, State
from edgedec.runtime.row_recipe import CAUSAL, RowRecipe, make_rows
from edgedec.runtime.run_settings import RunSettings
from edgedec.runtime.sampling.log_sum import log_sum
from edgedec.runtime.targets import host_device, open_target, target_module
from edgedec.runtime.targets.accelerator import ProgramTarget
from tests.runtime.decoders.support.third.block import Blocks

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 101,
    "max_position_embeddings": 96,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
LIMITS = Limits(nodes=4, depth=3, positions=64)
OPTIONS = AcceleratorOptions(overrides={"slots": 4})


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    path = tmp_path_factory.mktemp("bundle") / "tiny"
    write_random_bundle(path, CONFIG, method="ternary")
    return Bundle.open(path)


@pytest.fixture
def target(bundle: Bundle) -> Iterator[ProgramTarget]:
    opened = open_target(bundle, device="interpreter", limits=LIMITS, accelerator=OPTIONS)
    assert isinstance(opened, ProgramTarget)
    yield opened
    opened.close()


def rows(n: int) -> I32:
    return np.arange(n, dtype=np.int32)


def work(state: State, ids: list[int], **options: Any) -> Pass:
    return Pass(ids=np.array(ids, np.int32), positions=state.length + rows(len(ids)), **options)


def run(target: ProgramTarget, state: State, ids: list[int], **options: Any) -> PassResult:
    (result,) = target.submit([(state, work(state, ids, **options))]).result()
    return result


def test_the_likeliest_tokens_are_selected_on_the_device(target: ProgramTarget) -> None:
    state = target.open(LIMITS)
    whole = run(target, state, [5, 6, 7], logits=rows(3)).logits
    top = run(target, state, [5, 6, 7], logits=rows(3), top_k=2)
    assert top.top is not None
    np.testing.assert_array_equal(top.top.ids, np.argsort(-whole, axis=1, kind="stable")[:, :2])
    present = np.isfinite(top.logits)
    assert present.sum(axis=1).tolist() == [target.top_k] * 3
    np.testing.assert_array_equal(top.logits[present], whole[present])


def test_a_row_whose_likeliest_are_padding_is_read_whole(
    target: ProgramTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = target.open(LIMITS)
    whole = run(target, state, [5, 6, 7], logits=rows(3)).logits
    size = int(
        np.sort(whole.argsort(axis=1)[:, -target.top_k :].min(axis=1))[-1]
    )  # at least one row has none of the likeliest left
    tokens = replace(target.bundle.manifest.tokens, size=size)
    monkeypatch.setattr(Bundle, "tokens", property(lambda bundle: tokens))
    before = target.counters.passes
    result = run(target, state, [5, 6, 7], logits=rows(3), top_k=1)
    assert target.counters.passes == before + 2
    assert result.top is not None
    np.testing.assert_array_equal(result.top.ids[:, 0], whole[:, :size].argmax(axis=1))


@pytest.mark.parametrize(
    ("step", "k", "passes"),
    [(1, 1, 1), (1, 2, 2), (1000, 3, 1), (1000, 4, 2), (0, 1, 1)],
    ids=["largest", "equal floats", "fewer than found", "as many as found", "equal integers"],
)
def test_tokens_that_the_device_may_have_left_out_are_read_whole(
    target: ProgramTarget, monkeypatch: pytest.MonkeyPatch, step: int, k: int, passes: int
) -> None:
    """Give the device integers that float32 rounds to its next 2^7: of equal floats, the lower id has to come first."""
    results = Results(
        ids=np.arange(4, dtype=np.int32)[None] + 60,
        logits=2**30 - step * np.arange(4)[None],
        mantissa=np.array([3], np.int64),
        exponent=np.array([-20], np.int64),
        sums=np.array([0], np.int64),
    )
    assert target.top_k == 4
    monkeypatch.setattr(target.driver, "results", lambda rows: results)
    before = target.counters.passes
    top = run(target, target.open(LIMITS), [5], top_k=k).top
    assert target.counters.passes == before + passes
    assert top is not None
    assert passes == 2 or top.ids.tolist() == [list(range(60, 60 + k))]


def test_the_sum_needs_no_whole_rows_and_is_that_of_the_definition(
    target: ProgramTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ask for the sum beside the device's tokens, beside more of them, and of fewer ids than the device counts."""
    state = target.open(LIMITS)

    def asked(k: int) -> PassResult:
        return run(target, state, [5, 6, 7], logits=rows(3), top_k=k, log_sum=True)

    few, more = asked(2), asked(target.top_k + 1)
    assert np.isinf(few.logits).any()
    integers, size = target.driver.logits(rows(3)), 90
    assert defined_sums(integers, 101) == sums_of(few) == sums_of(more)
    assert sums_of(few) == pytest.approx([log_sum(row) for row in more.logits], abs=3e-4)
    tokens = replace(target.bundle.manifest.tokens, size=size)
    monkeypatch.setattr(Bundle, "tokens", property(lambda bundle: tokens))
    assert sums_of(asked(1)) == defined_sums(integers, size)


def sums_of(result: PassResult) -> list[float]:
    assert result.top is not None
    assert result.top.log_sum is not None
    sums: list[float] = result.top.log_sum.tolist()
    return sums


def defined_sums(logits: Logits, size: int) -> list[float]:
    """Return the sums of the first ``size`` logits of rows by the integer profile."""
    values = logits.values[:, :size]
    sums = sum_of_exponentials(values, logits.mantissa, sum_shift(logits.exponent))
    defined: list[float] = log_sums(sums, replace(logits, values=values.max(axis=1, keepdims=True))).tolist()
    return defined


def test_states_take_turns_on_one_device(target: ProgramTarget) -> None:
    a, b, alone = (target.open(LIMITS) for _ in range(3))
    for token in (5, 6, 7):  # each one replaces the other's rows on the device
        for state, shift in ((a, 0), (b, 10)):
            run(target, state, [token + shift])
            state.commit(rows(1))
    run(target, a, [1])
    run(target, b, [2])
    a.commit(rows(1))  # its rows are not on the device now
    run(target, alone, [5, 6, 7])
    alone.commit(rows(3))
    run(target, alone, [1])
    alone.commit(rows(1))
    assert a.length == alone.length == 4
    np.testing.assert_array_equal(run(target, a, [9]).logits, run(target, alone, [9]).logits)


@pytest.mark.parametrize("recipe", [Blocks(), CAUSAL])
def test_rows_that_run_again_are_those_of_the_recipe(bundle: Bundle, recipe: RowRecipe) -> None:
    """With causal rows in the place of bidirectional blocks, a text that had to give up the device goes on wrongly."""
    blocks = Blocks()
    opened = open_target(bundle, device="interpreter", limits=LIMITS, accelerator=OPTIONS, recipe=recipe)
    assert isinstance(opened, ProgramTarget)
    ids = np.arange(3, 19, dtype=np.int32)

    def last(state: State) -> list[float]:
        next_block = replace(blocks.rows_pass(ids, state.length, 4), logits=np.array([3], np.int32))
        (result,) = opened.submit([(state, next_block)]).result()
        return [float(value) for value in result.logits[0]]

    a, b = opened.open(LIMITS), opened.open(LIMITS)
    make_rows(blocks, opened, a, ids[:12], 4)
    expected = last(a)
    run(opened, b, [5, 6, 7], logits=rows(3))  # replaces the rows of the other state
    assert (last(a) == expected) == (recipe == blocks)
    opened.close()


def test_a_turn_that_fails_leaves_no_foreign_rows(target: ProgramTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise an error, or Ctrl-C, while another state's rows are moved to the device."""
    a, b = target.open(LIMITS), target.open(LIMITS)
    for state, ids in ((a, [5, 6, 7, 8]), (b, [15, 16, 17, 18])):
        run(target, state, ids)
        state.commit(rows(4))
    expected = run(target, a, [9]).logits
    real = target.driver.post
    for error in (DeviceError("a bus error"), KeyboardInterrupt()):

        def failing(*args: Any, error: BaseException = error, **options: Any) -> Any:
            real(*args, **options)  # it has run, which the host does not know
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(target.driver, "post", failing)
            with pytest.raises(type(error)):
                run(target, b, [19])
        np.testing.assert_array_equal(run(target, a, [9]).logits, expected)


def test_ctrl_c_in_a_commit_leaves_no_foreign_rows(target: ProgramTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    state, clean = target.open(LIMITS), target.open(LIMITS)
    for state_ in (state, clean):
        run(target, state_, [5, 6])
        state_.commit(rows(2))
    expected = run(target, clean, [9]).logits
    real = target.driver.commit

    def interrupted(nodes: I32) -> None:
        real(nodes)
        raise KeyboardInterrupt

    run(target, state, [7, 8])
    with monkeypatch.context() as patch:
        patch.setattr(target.driver, "commit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            state.commit(rows(2))
    assert state.length == 2
    np.testing.assert_array_equal(run(target, state, [9]).logits, expected)


def test_a_second_submit_completes_the_first_pass(target: ProgramTarget) -> None:
    a, b = target.open(LIMITS), target.open(LIMITS)
    for top_k in (0, 2):
        first = target.submit([(a, work(a, [5, 6], top_k=top_k))])
        second = target.submit([(b, work(b, [7], top_k=top_k))])
        results = [ticket.result()[0].logits for ticket in (second, first)]
        fresh = target.open(LIMITS)
        for logits, ids in zip(results, ([7], [5, 6]), strict=True):
            np.testing.assert_array_equal(logits, run(target, fresh, ids, top_k=top_k).logits)


def test_likeliest_rows_do_not_keep_the_previous_pass(target: ProgramTarget) -> None:
    state = target.open(LIMITS)
    run(target, state, [5, 6, 7], logits=rows(3), top_k=2)
    after = run(target, state, [50], top_k=2).logits
    assert np.isfinite(after).sum() == target.top_k


def test_ctrl_c_ends_a_pass_and_the_next_one_is_clean(target: ProgramTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    state = target.open(LIMITS)
    run(target, state, [5, 6])
    state.commit(rows(2))
    expected = run(target, state, [7]).logits

    def interrupted(timeout_s: float) -> bool:
        raise KeyboardInterrupt

    ticket = target.submit([(state, work(state, [8]))])
    with monkeypatch.context() as patch:
        patch.setattr(target.device, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ticket.result()
    with pytest.raises(UsageError, match="abandoned; submit it again"):
        ticket.result()
    assert state.length == 2
    np.testing.assert_array_equal(run(target, state, [7]).logits, expected)


def test_rows_outside_of_the_last_pass_cannot_be_kept(target: ProgramTarget) -> None:
    state = target.open(LIMITS)
    run(target, state, [5, 6])
    for nodes in ([2], [1, 0], [0, 0]):
        run(target, state, [5, 6])
        with pytest.raises(UsageError, match=r"cannot be kept of a pass of 2; name them in ascending order"):
            state.commit(np.array(nodes, np.int32))
    with pytest.raises(UsageError, match="of a pass of 0"):
        state.commit(rows(1))
    with pytest.raises(UsageError, match="cannot go back to 1 rows, there are 0"):
        state.truncate(1)
    assert state.length == 0


def test_counters_separate_passes_from_commits(target: ProgramTarget) -> None:
    state = target.open(LIMITS)
    run(target, state, [5, 6, 7])
    state.commit(np.array([0, 2], np.int32))
    run(target, state, [8])
    state.commit(rows(1))
    counters = target.counters
    assert (counters.passes, counters.commits, counters.rows) == (2, 1, 4)
    cost = target.cost_model
    assert cost is not None
    assert counters.seconds == pytest.approx(cost.seconds(3, 0) + cost.seconds(1, 2))
    assert target.facts.kind == "estimated", "the interpreter has no clock"
    assert (counters - counters).passes == 0


def test_a_closed_target_releases_its_device(bundle: Bundle) -> None:
    target = open_target(bundle, device="interpreter", limits=LIMITS, accelerator=OPTIONS)
    assert isinstance(target, ProgramTarget)
    state = target.open(LIMITS)
    target.close()
    target.close()
    with pytest.raises(DeviceError, match="closed"):
        run(target, state, [5])


def test_limits_past_those_of_the_accelerator_are_refused(bundle: Bundle) -> None:
    with pytest.raises(UsageError, match=r"4 slots and 1024 positions, not 5 and 64; lower --tree-nodes"):
        open_target(bundle, device="interpreter", limits=replace(LIMITS, nodes=5), accelerator=OPTIONS)
    with pytest.raises(
        UsageError, match=r"--board and --configuration are for accelerators \(.*sim.*\), not --device cpu"
    ):
        target_module("cpu", OPTIONS)


@given(
    values=st.lists(st.integers(-(2**31), 2**31 - 1), min_size=2, max_size=20),
    mantissa=st.integers(1 << 15, (1 << 16) - 1),
    exponent=st.integers(-60, 10),
    cap=st.one_of(st.none(), st.floats(1e-3, 1e3)),
)
def test_the_likeliest_float_is_that_of_the_integers(
    values: list[int], mantissa: int, exponent: int, cap: float | None
) -> None:
    """Use two integers that are one float32, or reach a soft-cap: the smaller one must not win by its id."""
    for row in (values, [max(values) - 1, *values], [values[0], max(values) - 1, max(values)]):
        integers = np.array([row], np.int64)
        floats = float_logits(
            Logits(values=integers, mantissa=np.array([mantissa]), exponent=np.array([exponent]), cap=cap)
        )
        assert int(floats.argmax()) == int(integers.argmax())
        real = np.ldexp(integers * float(mantissa), exponent)
        np.testing.assert_allclose(floats, real if cap is None else cap * np.tanh(real / cap), rtol=1e-6)


@pytest.mark.parametrize("method", [{"method": "int8"}, {"method": "ternary", "planes": 2, "group_size": 64}])
def test_a_plan_has_the_bytes_of_the_program(tmp_path: Path, method: dict[str, Any]) -> None:
    """Check that the manifest is enough; a row's own shifts depend on the weights, and are planned as if present."""
    write_random_bundle(tmp_path / "bundle", CONFIG | {"attention_bias": True}, **method)
    bundle = Bundle.open(tmp_path / "bundle")
    model = prepare_model(bundle, OPTIONS, 64)
    assert model.program.config == chosen_config(bundle, OPTIONS, 64)
    planned = buffer_bytes(bundle, OPTIONS, 64).by_name
    if "planes" in method:
        assert all(planned[name] >= size for name, size in model.program.sizes.items())
    else:
        assert dict(planned) == dict(model.program.sizes)


def test_a_plan_lists_the_memories_of_the_board(bundle: Bundle, tmp_path: Path) -> None:
    options = replace(OPTIONS, generator=HardwareGenerator())
    plan = make_plan(bundle, RunSettings(device="sim", accelerator=options)).plan
    by_name = {memory.name: memory for memory in plan.memories}
    assert list(by_name) == ["DRAM", "CMA", "BRAM", "URAM"]
    assert by_name["DRAM"].has_bytes == 4 << 30
    assert by_name["CMA"].has_bytes is None, "only the board can tell"
    assert 0 < by_name["BRAM"].used_bytes <= (by_name["BRAM"].has_bytes or 0)
    assert plan.pass_rows == 4
    with pytest.raises(BudgetError, match=r"(?s)needs .* at context 96.*\n.*weights"):
        make_plan(bundle, RunSettings(device="sim", accelerator=OPTIONS, budget_bytes=1 << 20)).plan.require()


def test_contiguous_memory_is_read_from_the_system(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgedec.runtime.accelerator import memories
    from edgedec.runtime.driver.cma import read_cma

    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 1 kB\nCmaTotal:         131072 kB\nCmaFree:              64 kB\n")
    monkeypatch.setattr(memories, "read_cma", lambda: read_cma(meminfo))
    config, sizes = chosen_config(bundle, OPTIONS, 64), buffer_bytes(bundle, OPTIONS, 64).by_name
    (cma,) = (memory for memory in board_memories(config, sizes, OPTIONS, "pynq") if memory.name == "CMA")
    assert (cma.has_bytes, cma.fits) == (64 << 10, False)
    assert "cma=192M" in cma.hint
    with pytest.raises(BudgetError, match=r"of CMA, which has 64.0 KiB \(read from the system\); .*cma=192M"):
        replace(make_plan(bundle, RunSettings(device="sim", accelerator=OPTIONS)).plan, memories=(cma,)).require()


def test_memory_of_u_dma_buf_limits_a_plan(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    from edgedec.runtime.accelerator import memories

    config, sizes = chosen_config(bundle, OPTIONS, 64), buffer_bytes(bundle, OPTIONS, 64).by_name
    for pieces, expected in (([64 << 10], [False, False]), (8192 * [4096], [True, False]), ([64 << 20], [True, True])):
        monkeypatch.setattr(memories, "udmabuf_bytes", lambda pieces=pieces: pieces)
        own = [one for one in board_memories(config, sizes, OPTIONS, "devmem") if one.name.startswith("u-dma-buf")]
        assert [one.has_bytes for one in own] == [sum(pieces), max(pieces)]
        assert [one.fits for one in own] == expected
        assert "create edgedecN 0x4000000" in own[0].hint
    monkeypatch.setattr(memories, "udmabuf_bytes", list)  # the plan is made elsewhere
    assert "CMA" in {one.name for one in board_memories(config, sizes, OPTIONS, "devmem")}


def test_a_draft_model_uses_the_memory_of_the_host() -> None:
    assert [host_device(name) for name in ("sim", "replay:x.rec", "pynq", "devmem", "cpu")] == ["cpu"] * 5
    assert host_device("cuda") == "cuda"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("small", ("small", {})),
        ("board", ("board", {})),
        ("slots=4", ("small", {"slots": 4})),
        ("board, slots=2, ultra=false,clock_hz=2e8", ("board", {"slots": 2, "ultra": False, "clock_hz": 2e8})),
    ],
)
def test_configurations_are_read(text: str, expected: tuple[str, dict[str, Any]]) -> None:
    assert parse_configuration(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("large", "must begin with one of small, board, not 'large'"),
        ("small,rows=3", "no member 'rows=3'; write NAME=VALUE, known: beat_bytes, "),
        ("small,slots", "--configuration: slots has no value; write slots=VALUE"),
        ("slots=many", "slots must be a whole number, not 'many'"),
        ("clock_hz=300MHz", "clock_hz must be a number in hertz, such as 250e6, not '300MHz'"),
        ("board,clock_hz=300", "clock_hz=300 is 300 Hz; for 300 MHz write clock_hz=300e6"),
        ("ultra=1", "ultra must be true or false, not '1'"),
    ],
)
def test_invalid_configurations_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_configuration(text)


def test_members_and_memories_are_checked(bundle: Bundle) -> None:
    with pytest.raises(UsageError, match="no member 'colour'; known: beat_bytes"):
        AcceleratorOptions(overrides={"colour": 1})
    with pytest.raises(UsageError, match="--memory must be one of auto, ddr, flat, ideal, not 'fast'"):
        check_memory("fast")
    with pytest.raises(UsageError, match=r"no board 'kv26'; there are .*kv260"):
        chosen_config(bundle, AcceleratorOptions(board="kv26"), 64)
    with pytest.raises(UsageError, match="context=32, the run needs 64 positions"):
        chosen_config(bundle, AcceleratorOptions(overrides={"context": 32}), 64)
    with pytest.raises(UsageError, match="pynq-z2 was not measured"):
        memory_model(AcceleratorOptions(board="pynq-z2", memory="ddr"))
    assert [memory_model(AcceleratorOptions(board=name)) for name in ("kv260", "pynq-z2")] == ["ddr", "flat"]


def test_the_generator_chooses_the_accelerator_of_a_board(bundle: Bundle) -> None:
    options = AcceleratorOptions(size="board", generator=HardwareGenerator())
    with pytest.raises(ToolError, match=r"needs the hardware generator; run: " + re.escape(install_extra("hdl"))):
        chosen_config(Bundle.open(bundle.path), replace(options, generator=None), 64)
    config = chosen_config(bundle, options, 64)
    assert (config.beat_bytes, config.ports) == (64, 4), "as wide as the KV260's memory"
    with pytest.raises(UnsupportedError, match=r"does not fit ulx3s-85f.*beat_bytes=64"):
        chosen_config(bundle, replace(options, board="ulx3s-85f", overrides={"beat_bytes": 64, "slots": 8}), 64)


def test_the_program_of_a_target_is_that_of_its_bundle(target: ProgramTarget, bundle: Bundle) -> None:
    assert target.program.host.bundle == bundle.sha256
