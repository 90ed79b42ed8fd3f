"""Test session, planning and the measured peak of memory on random bundles."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edgedec import demo
from edgedec.api import plan_run
from edgedec.bundle.bundle import Bundle
from edgedec.errors import BudgetError, BundleError, EdgedecError, UnsupportedError, UsageError
from edgedec.memory.plan import charged_bytes
from edgedec.quantize.synthetic.random_bundle import SHAPES, write_random_bundle
from edgedec.runtime import loop
from edgedec.runtime.decoders.autoregressive import AutoregressiveDecoder
from edgedec.runtime.engine.engine import Progress
from edgedec.runtime.engine.scheduler import Task
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.loop.inputs import SUBMIT
from edgedec.runtime.planning.planning import RunPlan, make_plan
from edgedec.runtime.planning.speculation import SpecConfig
from edgedec.runtime.run_settings import RunSettings
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session import request_builder
from edgedec.runtime.session.answer import Piece
from edgedec.runtime.session.session import Session
from edgedec.runtime.session.session_figures import SessionFigures
from edgedec.runtime.session.writer import AnswerWriter
from edgedec.runtime.targets._cpu import CpuTarget
from tests.runtime.support.fake_world import ScriptedDraft

GREEDY = SamplingConfig(temperature=0)
PROMPT = np.arange(5, 45, dtype=np.int32)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("with a space") / "model.edgedec"
    write_random_bundle(folder, "demo", "int8")
    return folder


@pytest.mark.thorough
def test_generate_reports_figures_and_reasons(path: Path) -> None:
    printed: list[str] = []
    with Session.open(path, threads=1, ctx_size=128) as session:
        answer = session.generate(PROMPT, n_predict=12, sampling=GREEDY, on_text=printed.append)
    assert len(answer.tokens) == 12
    assert answer.stop_reason == "limit"
    assert "".join(printed) == answer.text
    timings = answer.timings.as_json()
    assert timings["prompt_n"] == 40
    assert timings["predicted_n"] == 12
    assert timings["lossless"] == ("up to float ties" if usable() is None else "exact")
    assert 0 < timings["peak_bytes"] <= timings["planned_bytes"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("verifier", "lossless"),
    [
        ("match", "exact"),
        ("rejection", "distribution"),
        ("block", "distribution"),
        ("traversal", "distribution"),
        ("transport", "distribution"),
        ("typical", "lossy"),
    ],
)
def test_the_timings_say_what_a_verifier_promises(verifier: str, lossless: str) -> None:
    exact = "up to float ties" if usable() is None else "exact"
    spec = SpecConfig(drafter="model", draft=demo.bundle_path("demo-draft"), draft_max=3, verifier=verifier)
    texts = {}
    with Session.open(demo.bundle_path(), threads=1, ctx_size=128, spec=spec) as session:
        prompt = session.encode("Once upon a time")
        for temperature in (0.9, 0.0):
            sampling = SamplingConfig(temperature=temperature, seed=5)
            answer = session.generate(prompt, n_predict=16, sampling=sampling)
            promised = lossless if temperature and lossless != "exact" else exact
            assert answer.timings.as_json()["lossless"] == promised
            assert answer.timings.rounds.drafted > 0
            texts[temperature] = answer.text
    with Session.open(demo.bundle_path(), threads=1, ctx_size=128) as session:
        for temperature, text in texts.items():
            answer = session.generate(prompt, n_predict=16, sampling=SamplingConfig(temperature=temperature, seed=5))
            assert answer.timings.as_json()["lossless"] == exact
            if lossless == "exact" or not temperature:
                assert answer.text == text


@pytest.mark.thorough
def test_a_stream_gives_the_text_that_generate_gives() -> None:
    with Session.open(demo.bundle_path(), threads=1, ctx_size=128, spec=SpecConfig(drafter="ngram")) as session:
        prompt = session.encode("Once upon a time")
        answer = session.generate(prompt, n_predict=24, sampling=GREEDY)
        stream = session.stream(prompt, n_predict=24, sampling=GREEDY)
        pieces = list(stream)
    assert len(pieces) > 10
    assert stream.answer.tokens == answer.tokens
    assert stream.answer.stop_reason == answer.stop_reason == "limit"
    assert stream.answer.text == answer.text == "".join(pieces)
    assert stream.answer.timings.predicted_n == 24


def steps_of(session: Session, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which each step of a session adds its number of passes."""
    steps, engine = list[int](), session.scheduler.engine
    step = engine.step

    def counted() -> list[Progress]:
        passes = engine.passes
        parts = step()
        steps.append(engine.passes - passes)
        return parts

    monkeypatch.setattr(engine, "step", counted)
    return steps


@pytest.mark.thorough
@pytest.mark.skipif(usable() is None or loop.load() is None, reason="the libraries were not built (no C++ compiler)")
def test_a_text_that_is_read_at_its_end_has_many_rounds_in_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes count as long ones. A stop string ends a text without a pass that is for nothing."""
    monkeypatch.setattr(request_builder, "_AHEAD_SECONDS", 0.0)
    monkeypatch.setattr(request_builder, "_WHOLE_SECONDS", 1e9)
    with Session.open(demo.bundle_path(), threads=1, ctx_size=128) as session:
        prompt, steps = session.encode("Once upon a time"), steps_of(session, monkeypatch)
        printed = list[Piece]()
        shown = session.generate(prompt, n_predict=24, sampling=GREEDY, on_text=printed.append)
        assert (set(steps), shown.timings.rounds.count) == ({1}, 24)
        steps.clear()
        whole = session.generate(prompt, n_predict=24, sampling=GREEDY)
        assert (whole.text, whole.tokens, len(printed)) == (shown.text, shown.tokens, 24)
        assert whole.timings.rounds.count == 24
        assert max(steps) > 10
        steps.clear()
        stop = str(printed[10])
        stopped = session.generate(prompt, n_predict=24, sampling=GREEDY, stop=[stop])
        assert stopped.stop_reason == "stop"
        assert (set(steps), stopped.timings.rounds.count) == ({1}, len(stopped.tokens))


@pytest.mark.thorough
@pytest.mark.skipif(usable() is None or loop.load() is None, reason="the libraries were not built (no C++ compiler)")
def test_a_pause_lets_an_interruption_end_a_call_of_many_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_builder, "_WHOLE_SECONDS", 1e9)
    with Session.open(demo.bundle_path(), threads=1, ctx_size=128) as session:
        prompt = session.encode("Once upon a time")
        expected = session.generate(prompt, n_predict=90, sampling=GREEDY, ignore_eos=True).tokens
        target, passes, interrupted = session.target, 0, False
        assert isinstance(target, CpuTarget)
        assert target.compiled is not None
        inputs, usual = target.compiled.inputs, SUBMIT(target.session.run_function)

        def run(handle: int, rows: int, results: int) -> int:
            nonlocal passes, interrupted
            passes += 1
            if passes == 9:
                interrupted = True
                session.pause.set()
            return int(usual(handle, rows, results))

        inputs.arguments.submit = interrupting = SUBMIT(run)
        answer = session.generate(
            prompt, n_predict=90, sampling=GREEDY, ignore_eos=True, interrupted=lambda: interrupted
        )
        inputs.arguments.submit = usual
        del interrupting
        session.pause.clear()
        assert (answer.stop_reason, passes) == ("interrupted", 9)
        assert answer.tokens == expected[: len(answer.tokens)]
        assert session.generate(prompt, n_predict=90, sampling=GREEDY, ignore_eos=True).tokens == expected


@pytest.mark.thorough
def test_an_abandoned_stream_has_figures_and_the_next_answer_is_clean() -> None:
    with Session.open(demo.bundle_path(), threads=1, ctx_size=128) as session:
        prompt = session.encode("Once upon a time")
        whole = session.generate(prompt, n_predict=24, sampling=GREEDY)
        stream = session.stream(prompt, n_predict=24, sampling=GREEDY)
        first = next(iter(stream))
        stream.close()
        stream.close()
        assert (stream.answer.text, stream.answer.stop_reason) == (str(first), "interrupted")
        assert 1 <= stream.answer.timings.predicted_n == len(stream.answer.tokens) < 24
        assert session.generate(prompt, n_predict=24, sampling=GREEDY).tokens == whole.tokens


@pytest.mark.thorough
def test_a_loop_over_a_text_may_be_left_and_the_next_answer_is_clean() -> None:
    with Session.open(demo.bundle_path(), threads=1, ctx_size=128) as session:
        expected = session.generate(session.encode("One day"), n_predict=12, sampling=GREEDY)
        with session.stream("Once upon a time", n_predict=24, sampling=GREEDY) as stream:
            for _ in stream:
                break
        assert stream.answer.stop_reason == "interrupted"
        assert list(stream) == []
        for _ in session.stream("Once upon a time", n_predict=24, sampling=GREEDY):
            break
        session.scheduler.step()  # ends the answer that nobody can read
        assert not session.scheduler.running
        assert "".join(session.stream("One day", n_predict=12, sampling=GREEDY)) == expected.text
        with pytest.raises(UsageError, match="the prompt is empty"):
            session.stream("")


@pytest.mark.thorough
def test_closing_a_session_ends_the_answer_that_is_being_written() -> None:
    with Session.open(demo.bundle_path(), threads=1, ctx_size=128) as session:
        stream = session.stream("Once upon a time", n_predict=24, sampling=GREEDY)
        first = next(stream)
    assert (stream.answer.text, stream.answer.stop_reason) == (str(first), "interrupted")
    assert stream.answer.timings.predicted_n == len(stream.answer.tokens) >= 1
    assert list(stream) == []
    with pytest.raises(UsageError, match="the session is closed"):
        session.generate("Once upon a time")
    session.close()


@pytest.mark.thorough
def test_a_drafter_of_ones_own_is_planned_and_named_by_its_class() -> None:
    drafter = ScriptedDraft(lambda at: None, bytes={"draft_own": 12345})
    spec = SpecConfig(drafter=drafter)
    with Session.open(demo.bundle_path(), threads=1, ctx_size=128, spec=spec) as session:
        assert isinstance(session.decoder, AutoregressiveDecoder)
        assert session.decoder.drafter is drafter
        assert (session.run.plan.drafter, session.run.plan.items["draft_own"]) == ("ScriptedDraft", 12345)
        answer = session.generate("Once upon a time", n_predict=4, sampling=GREEDY)
    assert answer.timings.drafter == "ScriptedDraft"
    assert drafter.asked


@pytest.mark.thorough
def test_two_answers_at_once_are_refused_and_the_later_one_is_right() -> None:
    with Session.open(demo.bundle_path(), threads=1, ctx_size=128) as session:
        prompts = [session.encode(text) for text in ("Once upon a time", "The little dog")]
        expected = session.generate(prompts[1], n_predict=12, sampling=GREEDY)
        first = iter(session.stream(prompts[0], n_predict=12, sampling=GREEDY))
        next(first)
        assert session.generate(prompts[1], n_predict=12, sampling=GREEDY).tokens == expected.tokens
        with pytest.raises(
            UsageError, match="another answer was started before this one ended; read an answer to its end"
        ):
            list(first)
        assert session.generate(prompts[1], n_predict=12, sampling=GREEDY).tokens == expected.tokens


def test_an_answer_whose_reader_fails_has_ended_when_generate_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check this because its figures must not be taken later, when the session may be closed."""
    reasons, finish = list[str](), SessionFigures.finish

    def noted(figures: SessionFigures, writer: AnswerWriter, task: Task) -> None:
        reasons.append(writer.answer.stop_reason)
        finish(figures, writer, task)

    monkeypatch.setattr(SessionFigures, "finish", noted)

    def refuse(piece: Piece) -> None:
        raise OSError("nobody takes the text")

    with Session.open(demo.bundle_path(), threads=1, ctx_size=128) as session:
        prompt = session.encode("Once upon a time")
        try:
            session.generate(prompt, n_predict=24, sampling=GREEDY, on_text=refuse)
        except OSError:
            assert reasons == ["interrupted"]  # the traceback still holds the frame of generate here
        else:
            pytest.fail("the failure was lost")


def test_a_prompt_in_the_cache_is_reported_as_done(path: Path) -> None:
    reports: list[tuple[str, int, int]] = []
    with Session.open(path, threads=1, ctx_size=128) as session:
        for _ in range(2):
            reports.clear()
            session.generate(PROMPT, n_predict=2, sampling=GREEDY, progress=lambda *report: reports.append(report))
    assert reports == [("prompt tokens", 39, 39)]


def test_generation_stops_at_the_context_or_when_interrupted(path: Path) -> None:
    with Session.open(path, threads=1, ctx_size=64) as session:
        assert session.generate(PROMPT, sampling=GREEDY).stop_reason == "context"
        assert session.generate(PROMPT, n_predict=0, sampling=GREEDY).tokens == []
        answer = session.generate(PROMPT, sampling=GREEDY, interrupted=lambda: True)
        assert (answer.stop_reason, len(answer.tokens)) == ("interrupted", 1)
        with pytest.raises(EdgedecError, match="has 64 tokens, the context holds 64"):
            session.generate(np.ones(64, np.int32))
        with pytest.raises(UsageError, match="prompt is empty"):
            session.encode("")


def test_one_seed_gives_one_text(path: Path) -> None:
    with Session.open(path, threads=1, ctx_size=128) as session:
        texts = [
            session.generate(PROMPT, n_predict=10, sampling=SamplingConfig(temperature=2.0, seed=seed)).tokens
            for seed in (1, 1, 2)
        ]
    assert texts[0] == texts[1] != texts[2]


def test_a_budget_shrinks_the_context_if_precision_is_fixed(path: Path) -> None:
    bundle = Bundle.open(path)
    free = make_plan(bundle, RunSettings()).plan
    assert (free.ctx_size, free.fits, free.budget_bytes) == (1024, True, None)
    budget = free.total_bytes - (2 << 20)
    tight = make_plan(bundle, RunSettings(kv_bits=free.kv_bits, budget_bytes=budget)).plan
    assert tight.fits
    assert tight.ctx_size < 1024
    assert tight.total_bytes <= budget
    longer = make_plan(bundle, RunSettings(kv_bits=free.kv_bits, ctx_size=tight.ctx_size + 1, budget_bytes=budget)).plan
    assert longer.pass_rows < tight.pass_rows or not longer.fits  # a longer context is paid for with narrower passes
    assert charged_bytes(tight.items) == tight.total_bytes
    if usable() is not None:  # the kernels can keep them in 8 bits
        assert make_plan(bundle, RunSettings(budget_bytes=budget)).plan.ctx_size == 1024


def test_a_session_that_does_not_fit_is_refused_with_a_setting_that_fits(path: Path) -> None:
    bundle = Bundle.open(path)

    def make(**options: int) -> RunPlan:
        # With 32 bits keys and values are the largest part.
        return make_plan(bundle, RunSettings(kv_bits=32, **options))  # type: ignore[arg-type]

    budget = (make(ctx_size=1024, budget_bytes=1).plan.total_bytes >> 20) - 1  # MiB, of the smallest plan
    plan = make(ctx_size=1024, budget_bytes=budget << 20).plan
    assert not plan.fits
    with pytest.raises(
        BudgetError,
        match=rf"(?s)needs .* MiB at context 1024, the memory budget is {budget}.0 MiB:.* kv\n",
    ):
        plan.require()
    words = plan.hint.replace(",", "").split()
    context = int(words[words.index("--ctx-size") + 1])
    enough = int(words[words.index("--memory-budget") + 1].removesuffix("MiB"))
    assert make(ctx_size=context, budget_bytes=budget << 20).plan.fits
    assert not make(ctx_size=context + 1, budget_bytes=budget << 20).plan.fits
    assert make(ctx_size=1024, budget_bytes=enough << 20).plan.fits
    hopeless = make(budget_bytes=1 << 20).plan
    with pytest.raises(BudgetError, match="even a context of 1 needs"):
        hopeless.require()


@pytest.mark.parametrize("ctx_size", [-1, 1025])
def test_contexts_longer_than_the_model_s_are_refused(path: Path, ctx_size: int) -> None:
    with pytest.raises(UsageError, match=f"--ctx-size must be 1 to 1024, which is what the model has, not {ctx_size}"):
        make_plan(Bundle.open(path), RunSettings(ctx_size=ctx_size))


# script for a process per case, because the heap that one run leaves would hide allocations
_RUN = """
import sys
import numpy as np
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.session import Session
path, ctx_size, budget = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with Session.open(path, ctx_size=ctx_size, budget_bytes=budget or None, threads=2) as session:
    vocab = session.target.info.vocab
    prompt = (7919 * np.arange(session.run.limits.positions - 20) % vocab).astype(np.int32)  # no module for random ones
    answer = session.generate(prompt, sampling=SamplingConfig(temperature=1.0, seed=1))
print(session.run.plan.total_bytes, answer.timings.peak_bytes, answer.stop_reason)
"""


@pytest.mark.nightly(sample=3)
@pytest.mark.thorough
@pytest.mark.parametrize("method", ["int8", "native", "planes"])
@pytest.mark.parametrize("shape", ["demo", "wide", "deep", pytest.param("real", marks=pytest.mark.nightly)])
def test_a_full_context_stays_within_the_plan(tmp_path: Path, shape: str, method: str) -> None:
    """Measure weights, a full cache and load transients in a fresh process, and compare with the plan made before
    loading.
    """
    change = {
        "demo": {},
        "wide": {"hidden_size": 768, "intermediate_size": 2048, "vocab_size": 12000, "num_attention_heads": 8},
        "real": dict(SHAPES["bitnet-0.73b"]) | {"num_hidden_layers": 12},
        "deep": {"num_hidden_layers": 12, "hidden_size": 256, "num_attention_heads": 2, "num_key_value_heads": 2},
    }[shape]
    options = {
        "int8": {"method": "int8"},
        "native": {"method": "ternary"},
        "planes": {"method": "ternary", "planes": 2, "group_size": 64},
    }[method]
    config = dict(SHAPES["demo"]) | change
    if shape == "wide":
        config["num_key_value_heads"] = 8
    write_random_bundle(tmp_path / "m", config, **options)  # type: ignore[arg-type]
    process = subprocess.run(
        [sys.executable, "-c", _RUN, str(tmp_path / "m"), "512", "0"], capture_output=True, text=True, check=True
    )
    planned, peak, reason = process.stdout.split()
    assert reason == "context"
    assert int(peak) <= int(planned)
    assert int(planned) < 2.5 * int(peak)  # a plan that always overestimates is useless


# script for a process of its own: the modules that a run imports when its memory is measured already
_LATE = """
import sys
from edgedec import demo
from edgedec.memory.meter import MemoryMeter
from edgedec.runtime.planning.speculation import SpecConfig
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.session import Session
start = MemoryMeter.start
def note(self):
    global before
    before = set(sys.modules)
    start(self)
MemoryMeter.start = note
names = dict(argument.split("=") for argument in sys.argv[1:])
spec = SpecConfig(draft=demo.bundle_path("demo-draft") if names["drafter"] in ("model", "auto") else None, **names)
with Session.open("demo", ctx_size=256, threads=1, spec=spec) as session:
    session.generate(session.encode("Once upon a time"), n_predict=40, sampling=SamplingConfig(temperature=0.9, seed=1))
print(*sorted(set(sys.modules) - before))
"""


@pytest.fixture(scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return an environment whose cache has the embedded models, and from which no other process removes records."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}
    subprocess.run([sys.executable, "-c", _LATE, "drafter=model"], env=environment, capture_output=True, check=True)
    return environment


@pytest.mark.thorough
@pytest.mark.parametrize(
    "names",
    [
        *[{"drafter": name} for name in ("none", "ngram", "copy", "stand", "trigram", "model", "auto")],
        *[{"drafter": "model", "policy": name} for name in ("static", "dynamic", "delayed", "hardware")],
        *[{"drafter": "model", "policy": "chain", "verifier": name} for name in ("rejection", "block", "typical")],
        *[{"drafter": "model", "policy": "static", "verifier": name} for name in ("traversal", "transport")],
        {"drafter": "model", "decoder": "switch"},
    ],
    ids=lambda names: " ".join(names.values()),
)
def test_a_run_imports_nothing_after_its_memory_is_measured(names: dict[str, str], own_cache: dict[str, str]) -> None:
    """NumPy's generators, which a verifier used in its first round, took 1.4 MiB that no plan had."""
    command = [sys.executable, "-c", _LATE, *(f"{key}={name}" for key, name in names.items())]
    done = subprocess.run(command, env=own_cache, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_budget_on_a_gpu_is_refused(path: Path) -> None:
    with pytest.raises(UnsupportedError, match="a memory budget cannot be kept on webgpu"):
        make_plan(Bundle.open(path), RunSettings(device="webgpu", budget_bytes=1 << 30))
    assert make_plan(Bundle.open(path), RunSettings(device="webgpu")).limits.nodes == 31


def test_a_prompt_that_cannot_fit_is_refused_before_it_is_tokenized(path: Path) -> None:
    with Session.open(path, threads=1, ctx_size=64) as session:
        text = "word " * 1_000_000  # allocated before and kept, so that the allocator's reuse of it does not matter
        before = session.meter.charged_bytes()
        with pytest.raises(
            EdgedecError, match="the prompt has 5000000 characters, far more than a context of 64 tokens"
        ):
            session.encode(text)
        assert session.meter.charged_bytes() - before < 1 << 20
        with pytest.raises(UsageError, match="no chat template"):
            session.encode_chat([{"role": "user", "content": "Hello"}])


def test_figures_omit_what_did_not_run(path: Path) -> None:
    with Session.open(path, threads=1, ctx_size=128) as session:
        empty = session.generate(PROMPT, n_predict=0, sampling=GREEDY)
        assert (empty.stop_reason, empty.timings.predicted_per_second) == ("limit", 0.0)
        session.generate(PROMPT, n_predict=2, sampling=GREEDY)
        again = session.generate(PROMPT, n_predict=2, sampling=GREEDY).timings
    assert (again.prompt_n, again.prompt_kept) == (40, 39)
    assert again.prompt_per_second == pytest.approx(1000 / again.prompt_ms)


@pytest.mark.thorough(sample=2)
@pytest.mark.parametrize("value", ["x", None, -5, 0, 2**63, 1e400, True])
def test_a_context_that_is_not_a_number_is_refused(tmp_path: Path, value: object) -> None:
    config = dict(SHAPES["demo"]) | {"max_position_embeddings": value}
    if value in (1e400,):
        config["max_position_embeddings"] = 1e300  # JSON has no infinity
    write_random_bundle(tmp_path / "m", config)
    if value is None:
        assert make_plan(Bundle.open(tmp_path / "m"), RunSettings()).plan.ctx_size == 2048
        return
    with pytest.raises(BundleError, match="max_position_embeddings must be an integer in 1"):
        make_plan(Bundle.open(tmp_path / "m"), RunSettings())


def test_everything_is_closed_even_if_some_of_it_fails(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []

    class Part:
        def __init__(self, name: str) -> None:
            self.name = name

        def close(self) -> None:
            closed.append(self.name)
            raise EdgedecError(self.name)

    session = Session.open(path, ctx_size=64, threads=1)
    meter = session.meter
    monkeypatch.setattr(session, "state", Part("state"))
    monkeypatch.setattr(session.target, "close", Part("device").close, raising=False)
    monkeypatch.setattr(session, "_figures", Part("figures"))
    monkeypatch.setattr(session, "meter", Part("meter"))
    with pytest.raises(EdgedecError):
        session.close()
    meter.close()
    assert closed == ["state", "figures", "device", "meter"]


@pytest.mark.parametrize("budget", ["32MiB", 32.5, True, [1]])
def test_a_budget_that_is_no_number_of_bytes_is_refused_by_name(path: Path, budget: object) -> None:
    message = r"^budget_bytes must be a whole number of bytes, such as 32 \* 2\*\*20, not "
    with pytest.raises(UsageError, match=message):
        Session.open(path, budget_bytes=budget)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=message):
        plan_run(path, budget_bytes=budget)  # type: ignore[arg-type]


def test_a_budget_may_be_an_integer_of_numpy(path: Path) -> None:
    assert plan_run(path, budget_bytes=np.int64(1 << 30)).fits  # type: ignore[arg-type]


def test_sampling_and_stops_of_another_type_are_refused_by_name(path: Path) -> None:
    with Session.open(path) as session:
        with pytest.raises(
            UsageError, match=r"^sampling must be a SamplingConfig, such as .*, not {'temperature': 0}$"
        ):
            session.generate(PROMPT, n_predict=1, sampling={"temperature": 0})  # type: ignore[arg-type]
        with pytest.raises(UsageError, match=r"^stop must be a list of texts, such as \['end'\], not a text$"):
            session.generate(PROMPT, n_predict=1, stop="end")
        assert session.generate(PROMPT, n_predict=1, sampling=GREEDY).tokens
