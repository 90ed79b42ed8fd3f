"""Compare texts that the compiled loop writes on an accelerator with those of Python's loop, also after faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from ctypes import POINTER, c_int64, cast
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.device import LoopAccess
from edgedec.errors import DeviceError, EdgedecError
from edgedec.hw.config import RING_SLACK
from edgedec.hw.isa.registers import REGISTER_MAP
from edgedec.hw.isa.striping import stripe
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from edgedec.runtime import loop
from edgedec.runtime.accelerator import opening
from edgedec.runtime.accelerator.float_logits import SparseRows
from edgedec.runtime.accelerator.lending import lender_of
from edgedec.runtime.accelerator.lent_arguments import COMMITTED
from edgedec.runtime.accelerator.options import AcceleratorOptions
from edgedec.runtime.driver.driver import Driver
from edgedec.runtime.driver.regions import OWNER_REGISTER
from edgedec.runtime.loop.rounds import RoundsCall
from edgedec.runtime.planning.speculation import SpecConfig
from edgedec.runtime.protocols import I32, Pass
from edgedec.runtime.rounds import compiled
from edgedec.runtime.rounds.adaptive import Adaptive
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.answer import Answer
from edgedec.runtime.session.session import Session
from edgedec.runtime.targets.accelerator import ProgramTarget
from edgedec.schemes import FloatWeight, TernaryWeight
from tests.runtime.accelerator.support.tiny_config import CONFIG
from tests.runtime.driver.support.fake_faulty_device import FaultyDevice

pytestmark = pytest.mark.skipif(loop.load() is None, reason="the loop's library was not built (no C++ compiler)")

OPTIONS = AcceleratorOptions(overrides={"slots": 8})
GREEDY = SamplingConfig(temperature=0)
PROMPT = np.array(([5, 9, 12, 7] * 5)[:18], np.int32)
TOKENS = 20
_CONTROL, _COMMIT_SLOTS, _PARAMETERS, _EVENTS = (
    REGISTER_MAP.offsets()[name] for name in ("control", "commit_slots", "pass_parameters", "interrupt_status")
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("with a space") / "model.edgedec"
    write_random_bundle(folder, CONFIG, "ternary")
    return folder


@contextmanager
def opened(path: Path, drafter: str = "none", tree: str = "static", *, compiled: bool = True) -> Iterator[Session]:
    """Open a session on the interpreter, whose rounds are Python's with ``compiled`` False."""
    spec = SpecConfig(drafter=drafter, policy=tree)
    with pytest.MonkeyPatch.context() as patch:
        if not compiled:
            patch.setattr(loop, "load", lambda: None)
        with Session.open(path, device="interpreter", accelerator=OPTIONS, spec=spec) as session:
            yield session


def target_of(session: Session) -> ProgramTarget:
    target = session.target
    assert isinstance(target, ProgramTarget)
    return target


def lent_passes(session: Session) -> int:
    """Return the number of passes that the compiled loop has run."""
    lender = target_of(session).compiled
    assert lender is not None
    return int(lender.arguments.passes)


def write(session: Session, sampling: SamplingConfig = GREEDY, prompt: Sequence[int] = tuple(PROMPT)) -> Answer:
    return session.generate(np.array(prompt, np.int32), n_predict=TOKENS, sampling=sampling, ignore_eos=True)


def both(
    path: Path, sampling: SamplingConfig = GREEDY, drafter: str = "none", tree: str = "static"
) -> tuple[Answer, Answer]:
    """Return the answers of the two loops; most of the passes of the first one were the compiled loop's."""
    with opened(path, drafter, tree) as session:
        first = write(session, sampling)
        assert lent_passes(session) >= 0.8 * target_of(session).counters.passes - 3  # the prompt has three
    with opened(path, drafter, tree, compiled=False) as session:
        assert target_of(session).compiled is None
        return first, write(session, sampling)


def test_a_plain_text_and_its_counters_are_those_of_python(path: Path) -> None:
    compiled, python = both(path)
    assert compiled.tokens == python.tokens
    device, other = (one.timings.as_json()["accelerator"] for one in (compiled, python))
    assert device["decode"] == other["decode"]
    assert device["decode"]["passes"] == TOKENS
    assert device["decode"]["beats"] > 0


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("drafter", "tree"), [("ngram", "chain"), ("copy", "static"), ("stand", "dynamic"), ("auto", "hardware")]
)
@pytest.mark.parametrize("sampling", [GREEDY, SamplingConfig(temperature=1.1, top_k=4, top_p=0.9, seed=3)])
def test_texts_with_guesses_are_those_of_python(path: Path, drafter: str, tree: str, sampling: SamplingConfig) -> None:
    compiled, python = both(path, sampling, drafter, tree)
    assert compiled.tokens == python.tokens
    assert (
        compiled.timings.rounds.drafted > 0 or drafter == "auto"
    )  # to whom guesses do not pay beside so small a model


@pytest.mark.thorough
def test_rows_that_move_are_committed(path: Path) -> None:
    with opened(path, "stand", "static") as session:
        for _ in range(3):
            answer = write(session)
        assert target_of(session).counters.commits > 0
        assert lent_passes(session) > 0
    with opened(path) as session:
        assert write(session).tokens == answer.tokens


@pytest.mark.thorough
@pytest.mark.parametrize(
    "sampling",
    [
        SamplingConfig(temperature=1.0, top_k=3, seed=5),  # the device finds them
        SamplingConfig(temperature=1.0, top_k=0, top_p=0.8, seed=6),  # whole rows are read
        SamplingConfig(temperature=0, repeat_penalty=1.5),  # changes logits
    ],
)
def test_samples_are_those_of_python(path: Path, sampling: SamplingConfig) -> None:
    compiled, python = both(path, sampling)
    assert compiled.tokens == python.tokens


def test_the_input_is_that_of_python(path: Path) -> None:
    """Slots that had a row in an earlier pass are zero again, and the bytes lie as the read ports take them."""
    with opened(path) as session:
        tokens = [*PROMPT.tolist(), *write(session).tokens]
        driver = target_of(session).driver
        last = len(tokens) - 2  # the row of the last pass; the last token has none
        image = driver.host.input(np.array([tokens[last]], np.int32), np.array([last], np.int32))
        config = driver.program.config
        expected = stripe(image, ports=config.ports, port_bytes=config.port_bytes)
        assert driver.regions["input"].array[: expected.size].tolist() == expected.tolist()


@pytest.mark.thorough
def test_states_that_take_turns_write_their_own_texts(path: Path) -> None:
    with opened(path) as session:
        whole = write(session).tokens
        other = write(session, prompt=(3, 1, 4, 1, 5)).tokens
        assert write(session).tokens == whole
        assert write(session, prompt=(*PROMPT.tolist(), *whole[:7])).tokens[: TOKENS - 7] == whole[7:]
    with opened(path, compiled=False) as session:
        assert (write(session).tokens, write(session, prompt=(3, 1, 4, 1, 5)).tokens) == (whole, other)


@contextmanager
def faulty(path: Path, drafter: str = "none", tree: str = "static") -> Iterator[tuple[Session, FaultyDevice]]:
    devices, before = list[FaultyDevice](), opening.open_device

    def wrapped(*arguments: Any, **options: Any) -> FaultyDevice:
        device = FaultyDevice(before(*arguments, **options))
        device.loop_access = LoopAccess()  # type: ignore[attr-defined]
        device.recorded_name = "interpreter"  # type: ignore[attr-defined]
        devices.append(device)
        return device

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("edgedec.runtime.targets.accelerator.open_device", wrapped)
        with opened(path, drafter, tree) as session:
            yield session, devices[0]


def at_read(device: FaultyDevice, number: int, act: Callable[[], object]) -> None:
    """Call a function before a read of a register, in the middle of a call of the compiled loop."""
    reads = iter(range(1, number + 1))

    def count(offset: int) -> None:
        if next(reads, 0) == number:
            act()

    device.before_read = count


def test_ctrl_c_in_a_pass_ends_the_answer_and_nothing_else(path: Path) -> None:
    with faulty(path) as (session, device):
        whole = write(session).tokens
        at_read(device, 200, lambda: setattr(device, "interrupted_waits", 1))
        with pytest.raises(KeyboardInterrupt):
            write(session)
        assert not device.interrupted_waits
        assert write(session).tokens == whole


def test_a_read_that_fails_is_the_error_of_the_answer(path: Path) -> None:
    with faulty(path) as (session, device):
        whole = write(session).tokens
        at_read(device, 200, lambda: setattr(device, "failing_reads", 1_000_000))
        with pytest.raises(DeviceError, match="no answer to a read of 0x"):
            write(session)
        device.failing_reads = 0
        assert write(session).tokens == whole


def test_a_pass_that_never_ends_is_reported_with_its_instruction(path: Path) -> None:
    with faulty(path) as (session, device):
        whole, driver = write(session).tokens, target_of(session).driver
        device.frozen = True
        driver.max_cycles = 1000
        lender = target_of(session).compiled
        assert lender is not None
        lender.arguments.patience_seconds = 1000 / device.clock_hz
        with pytest.raises(DeviceError, match=r"gave no answer within 1000 cycles; \d+ instructions were issued"):
            write(session)
        device.frozen = False
        assert write(session).tokens == whole


@contextmanager
def moving(path: Path) -> Iterator[tuple[Session, FaultyDevice]]:
    """Open a session whose rounds all have guesses, so that commits of every text move rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Adaptive, "size", lambda adaptive, policy, size, length: size)
        with faulty(path, "stand", "dynamic") as (session, device):
            yield session, device


def watch_doorbells(device: FaultyDevice, rung: Callable[[str], object]) -> None:
    """Call a function with "start" or "commit" when a doorbell is rung, before it is."""
    names = {"start": 1, "commit": 2}

    def before_write(offset: int, value: int) -> int:
        if offset == _CONTROL:
            for name, bit in names.items():
                if value & bit:
                    rung(name)
        return value

    device.before_write = before_write


@pytest.mark.thorough
def test_nothing_is_awaited_between_a_commit_and_the_next_pass(path: Path) -> None:
    with moving(path) as (session, device), pytest.MonkeyPatch.context() as patch:
        for _ in range(2):
            write(session)
        rung, calls, run = list[tuple[str, int]](), list[int](), RoundsCall.run

        def counted(call: RoundsCall, *arguments: Any) -> int:
            calls.append(len(rung))
            return run(call, *arguments)

        patch.setattr(RoundsCall, "run", counted)
        watch_doorbells(device, lambda name: rung.append((name, len(device.waits_s))))
        lender = target_of(session).compiled
        assert lender is not None
        commits = lender.arguments.commits
        whole = write(session).tokens
        own = rung[calls[0] :]  # the rounds before it are Python's
        waits = [after - before for (one, before), (_, after) in pairwise(own) if one == "commit"]
        assert waits.count(0) > 0
        assert len(waits) - waits.count(0) < len(calls), "the last commit of a call is awaited, and no other"
        assert [one for one, _ in own].count("commit") == lender.arguments.commits - commits
    with opened(path) as session:
        assert write(session).tokens == whole


def fail_commit(device: FaultyDevice, number: int) -> None:
    """Let the commit of this number, from 1 on, be of a pass of no slots, which moves nothing and is an error."""
    numbers, last = count(1), 0

    def before_write(offset: int, value: int) -> int:
        nonlocal last
        last, before = offset, last
        commits = offset == _PARAMETERS and before == _COMMIT_SLOTS
        return value & ~0xF if commits and next(numbers) == number else value

    device.before_write = before_write


@pytest.mark.thorough
def test_a_commit_that_fails_is_reported_and_its_rows_run_again(path: Path) -> None:
    with opened(path) as session:
        whole = write(session).tokens
    with moving(path) as (session, device):
        for _ in range(2):
            assert write(session).tokens == whole
        lender, rung = target_of(session).compiled, list[str]()
        assert lender is not None
        passes, commits = lender.arguments.passes, lender.arguments.commits
        fail_commit(device, 3)  # the first is Python's, and no pass follows the second
        spoil = device.before_write
        watch_doorbells(device, rung.append)
        note = device.before_write
        device.before_write = lambda offset, value: note(offset, spoil(offset, value))
        with pytest.raises(DeviceError, match="slots"):
            write(session)
        assert rung.count("commit") == 3
        first = rung.index("commit")
        assert rung[first + 1 :] == ["start", "commit", "start", "commit", "start", "start"]
        # The third pass after the first commit was posted before the error was seen, and the fourth is Python's.
        assert (lender.arguments.passes - passes, lender.arguments.commits - commits) == (2, 1)
        device.before_write = lambda _, value: value
        assert write(session).tokens == whole


@pytest.mark.thorough
def test_ctrl_c_while_a_commit_runs_ends_the_answer_and_nothing_else(path: Path) -> None:
    with moving(path) as (session, device):
        for _ in range(2):
            whole = write(session).tokens

        rung, lender = list[str](), target_of(session).compiled
        assert lender is not None

        def interrupt(name: str) -> None:
            rung.append(name)
            device.interrupted_waits += name == "commit" and rung.count("commit") == 3  # after one of Python's

        watch_doorbells(device, interrupt)
        with pytest.raises(KeyboardInterrupt):
            write(session)
        assert rung[-2:] == ["commit", "start"]
        assert lender.arguments.pending == COMMITTED | 1
        device.before_write = lambda _, value: value
        assert write(session).tokens == whole


@pytest.mark.thorough
def test_a_pass_after_a_commit_that_never_ends_is_met_again_by_the_next_call(path: Path) -> None:
    with moving(path) as (session, device):
        for _ in range(2):
            whole = write(session).tokens
        lender = target_of(session).compiled
        assert lender is not None
        lender.arguments.patience_seconds = 1000 / device.clock_hz
        target_of(session).driver.max_cycles = 1000

        def before_write(offset: int, value: int) -> int:
            device.frozen = device.frozen or (offset == _EVENTS and value == COMMITTED)  # the commit has ended
            return value

        device.before_write = before_write
        with pytest.raises(DeviceError, match="gave no answer within 1000 cycles; 0 instructions were issued: "):
            write(session)
        device.before_write, device.frozen = lambda _, value: value, False
        lender.arguments.patience_seconds = target_of(session).driver.max_cycles = 1 << 40
        assert write(session).tokens == whole


def test_rows_that_could_not_run_again_are_not_taken_for_those_of_the_text(path: Path) -> None:
    with faulty(path) as (session, device):
        target, posted, text = target_of(session), Driver.post, PROMPT[:8]
        states = [target.open(session.run.limits) for _ in range(2)]

        def run(state: Any, ids: I32) -> list[float]:
            rows = np.arange(len(ids), dtype=np.int32)
            work = Pass(ids=ids, positions=state.length + rows)
            (result,) = target.submit([(state, work)]).result()
            state.commit(rows)
            return [float(value) for value in result.logits[0]]

        run(states[0], text)
        expected = run(states[0], text[:1])
        states[0].truncate(8)
        run(states[1], text[3:])

        def failing(*arguments: Any, **options: Any) -> None:
            posted(*arguments, **options)
            device.failing_reads = 1

        lent: Any = states[0]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Driver, "post", failing)
            with pytest.raises(DeviceError, match="no answer to a read of 0x"):
                lent.reserve(1)
        lent.advance(8, text)  # the rounds do this after an error
        assert run(states[0], text[:1]) == expected


def test_an_accelerator_that_another_driver_has_taken_is_left_alone(path: Path) -> None:
    offset = REGISTER_MAP.offsets()[OWNER_REGISTER]
    with faulty(path) as (session, device):
        write(session)
        at_read(device, 200, lambda: device.write_register(offset, 0x1000))
        with pytest.raises(DeviceError, match=r"its output_address is 0x.*1000, not 0x.*open one driver at a time"):
            write(session)


def test_the_host_cache_is_left_to_instructions_where_a_program_may_use_them(path: Path) -> None:
    with faulty(path) as (session, device):
        device.loop_access = LoopAccess(cache=lambda _: "instructions")  # type: ignore[attr-defined]
        target, library = target_of(session), loop.load()
        assert library is not None
        embedding = FloatWeight(values=np.zeros((48, 32), np.float32))
        function = library.function
        for known in (0, 1):
            with pytest.MonkeyPatch.context() as patch:
                other = {"edgedec_loop_cache_instructions": lambda known=known: known}
                patch.setattr(library, "function", lambda name, other=other: other.get(name) or function(name))
                more: dict[str, Any] = {"ids": 48, "cost": None, "owner": None, "rows": SparseRows(8, 48)}
                lender = lender_of(target.driver, embedding, **more)
                assert lender is not None
                with suppress(EdgedecError):  # this processor may have none
                    lender.inputs  # noqa: B018  it makes them
                arguments = lender._arguments
                assert arguments is not None
                assert (arguments.cache_instructions, bool(arguments.flush), bool(arguments.fetch)) == (
                    known,
                    not known,
                    not known,
                )


@pytest.mark.thorough
def test_ends_without_an_interrupt_are_noticed_and_said(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with faulty(path) as (session, device):
        whole = write(session).tokens
        caplog.clear()
        device.interrupt_is_cut = True
        assert write(session).tokens == whole
        assert caplog.text.count("ended without an interrupt") == 1


def test_a_wrapped_device_or_another_embedding_keeps_pythons_loop(path: Path) -> None:
    with faulty(path) as (session, device):
        del device.loop_access  # type: ignore[attr-defined]
        target = target_of(session)
        more: dict[str, Any] = {"ids": 48, "cost": None, "owner": None, "rows": SparseRows(8, 48)}
        floats = FloatWeight(values=np.zeros((48, 32), np.float32))
        assert lender_of(target.driver, floats, **more) is None
        device.loop_access = LoopAccess()  # type: ignore[attr-defined]
        assert lender_of(target.driver, floats, **more)
        trits = TernaryWeight(trits=np.zeros((1, 48, 32), np.int8), scale=np.ones(1, np.float32), group_size=0)
        assert lender_of(target.driver, trits, **more) is None


def test_a_failure_that_passed_by_is_not_the_cause_of_a_later_one(path: Path) -> None:
    with faulty(path) as (session, device):
        whole = write(session).tokens
        at_read(device, 200, lambda: setattr(device, "failing_reads", 1))
        assert write(session).tokens == whole, "the rounds before it are read, and the next call succeeds"
        assert not device.failing_reads
        lender = target_of(session).compiled
        assert lender is not None
        lender.arguments.patience_seconds = 1000 / device.clock_hz
        at_read(device, 200, lambda: setattr(device, "frozen", True))
        with pytest.raises(DeviceError, match=r"gave no answer within \d+ cycles"):
            write(session)


@pytest.mark.thorough
def test_a_ring_that_an_interrupted_call_has_turned_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rounds of the call are lost, but their rows have replaced older ones, more than the ring has to spare."""
    path = tmp_path / "windowed.edgedec"
    windowed = {"model_type": "mistral", "sliding_window": 8, "max_position_embeddings": 512, "num_hidden_layers": 2}
    write_random_bundle(path, {**CONFIG, **windowed}, "ternary")
    monkeypatch.setattr(compiled, "_seconds", lambda plans: 1e9)  # so that a call has many rounds
    monkeypatch.setattr(Adaptive, "size", lambda adaptive, policy, size, length: size)
    with faulty(path, "ngram", "chain") as (session, device):
        target = target_of(session)

        def generate() -> list[int]:
            return session.generate(PROMPT, n_predict=110, sampling=GREEDY, ignore_eos=True).tokens

        whole = generate()
        lender, kept = target.compiled, set[bool]()
        assert lender is not None
        sequences = cast(lender.arguments.sequences, POINTER(c_int64))  # rows and past of the last pass
        for reads in (400, 600, 650):
            write(session, prompt=(3, 1, 4, 1, 5))
            at_read(device, reads, lambda: setattr(device, "interrupted_waits", 1))
            with pytest.raises(KeyboardInterrupt):
                generate()
            device.before_read = lambda offset: None
            rows, past = sequences[0], sequences[1]
            held = target.driver.length
            kept.add(held > 0)
            assert held == 0 or past + rows - held <= RING_SLACK + 8
            assert generate() == whole
        assert kept == {True, False}
