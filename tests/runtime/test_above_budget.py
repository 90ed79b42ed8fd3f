"""Test runs of models whose weights are larger than the memory budget: their plans, texts and memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.bundle.bundle import Bundle
from edgedec.errors import BudgetError, DeviceError
from edgedec.memory.meter import MemoryMeter
from edgedec.memory.plan import charged_bytes
from edgedec.quantize.synthetic.random_bundle import SHAPES, write_random_bundle
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.kernels.weights.layout_cache import FILE
from edgedec.runtime.planning.planning import make_plan
from edgedec.runtime.planning.speculation import SpecConfig
from edgedec.runtime.run_settings import RunSettings
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.session import Session
from tests.edgedec.cli.support.make_known_model import byte_tokenizer

pytestmark = pytest.mark.skipif(usable() is None, reason="the kernels' library was not built (no C++ compiler)")

DRAFTERS = ("none", "ngram", "copy", "stand", "trigram", "model", "auto")
CONTEXT = 128
CHILD = Path(__file__).parents[2] / "benchmarks" / "memory" / "budget_child.py"
MIB = 1 << 20
PROMPT = np.array([3, 5, 8, 3, 5, 8, 3, 5], np.int32)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Bundle]:
    """Return a model of 15 MiB, and a draft for it."""
    folder = tmp_path_factory.mktemp("above")
    shape = dict(SHAPES["demo"])
    shapes = {
        "large": shape | {"num_hidden_layers": 3, "hidden_size": 1024, "intermediate_size": 4096},
        "draft": shape
        | {"num_hidden_layers": 1, "hidden_size": 96, "num_attention_heads": 1, "num_key_value_heads": 1},
    }
    for name, config in shapes.items():
        write_random_bundle(folder / name, config, "int8" if name == "draft" else "ternary")
    return {name: Bundle.open(folder / name) for name in shapes}


def spec_of(bundles: Mapping[str, Bundle], drafter: str) -> SpecConfig:
    return SpecConfig(drafter=drafter, draft=bundles["draft"].path if drafter in ("model", "auto") else None)


def least(bundle: Bundle, spec: SpecConfig | None = None) -> int:
    """Return the bytes of the least plan."""
    return make_plan(bundle, RunSettings(threads=1, ctx_size=CONTEXT, spec=spec, budget_bytes=1)).plan.total_bytes


def text(session: Session, **sampling: Any) -> list[int]:
    return session.generate(PROMPT, n_predict=32, sampling=SamplingConfig(**sampling), ignore_eos=True).tokens


@pytest.mark.thorough
def test_what_does_not_fit_is_streamed_and_what_fits_is_not(bundles: Mapping[str, Bundle]) -> None:
    bundle = bundles["large"]
    whole = make_plan(bundle, RunSettings(threads=1, ctx_size=CONTEXT)).plan
    smallest = least(bundle)
    assert smallest < whole.total_bytes - 6 * MIB
    pinned = []
    for budget in range(smallest, whole.total_bytes, 700_001):
        plan = make_plan(bundle, RunSettings(threads=1, ctx_size=CONTEXT, budget_bytes=budget)).plan
        assert plan.fits
        assert plan.total_bytes == charged_bytes(plan.items) <= budget
        if "weights" in plan.items:
            assert plan.disk is None
            continue
        assert plan.disk is not None
        assert plan.disk.bytes_per_second > 0
        assert plan.items["weights_pinned"] + plan.disk.bytes_per_pass == pytest.approx(
            whole.items["weights"], abs=8192
        )
        assert budget - plan.total_bytes < 64 << 10, "what is left pins weights"
        pinned.append(plan.items["weights_pinned"])
    assert len(pinned) > 4
    assert max(pinned) > min(pinned) + 4 * MIB


def test_a_pass_of_more_rows_takes_no_longer_until_the_computation_does(bundles: Mapping[str, Bundle]) -> None:
    plan = make_plan(
        bundles["large"], RunSettings(threads=1, ctx_size=CONTEXT, budget_bytes=least(bundles["large"]) + MIB)
    ).plan
    assert plan.disk is not None
    seconds = list(plan.disk.pass_seconds.values())
    assert seconds == sorted(seconds)
    assert seconds[0] >= plan.disk.bytes_per_pass / plan.disk.bytes_per_second
    assert plan.estimated_tokens_per_second == pytest.approx(1 / seconds[0])


def test_a_budget_without_room_for_a_window_is_refused(bundles: Mapping[str, Bundle]) -> None:
    smallest = least(bundles["large"])
    with pytest.raises(BudgetError, match=r"(?s)weights_pinned\n.*weights_window\n.*--memory-budget \d+MiB") as caught:
        make_plan(bundles["large"], RunSettings(threads=1, ctx_size=CONTEXT, budget_bytes=smallest - 1)).plan.require()
    nearest = int(str(caught.value).rpartition("--memory-budget ")[2].partition("MiB")[0])
    assert make_plan(bundles["large"], RunSettings(threads=1, ctx_size=CONTEXT, budget_bytes=nearest << 20)).plan.fits
    assert nearest << 20 < smallest + MIB


@pytest.mark.thorough
def test_several_texts_share_a_streamed_model(bundles: Mapping[str, Bundle]) -> None:
    path = bundles["large"].path
    four = make_plan(
        bundles["large"], RunSettings(threads=1, ctx_size=CONTEXT, sequences=4, kv_bits=16, budget_bytes=1)
    ).plan
    prompts = [PROMPT, PROMPT[:5], PROMPT[3:]]
    sampling = SamplingConfig(temperature=0)
    with Session.open(path, threads=1, ctx_size=CONTEXT) as alone:
        expected = [alone.generate(prompt, n_predict=12, sampling=sampling).tokens for prompt in prompts]
    budget = four.total_bytes + MIB
    with Session.open(path, threads=1, ctx_size=CONTEXT, kv_bits=16, sequences=4, budget_bytes=budget) as session:
        assert session.run.plan.disk is not None
        streams = [session.stream(prompt, n_predict=12, sampling=sampling) for prompt in prompts]
        for stream in streams:
            for _ in stream:
                pass
        assert [stream.answer.tokens for stream in streams] == expected


@pytest.mark.nightly(sample=3)
@pytest.mark.thorough
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_texts_are_those_of_the_resident_model(bundles: Mapping[str, Bundle], drafter: str) -> None:
    path, spec = bundles["large"].path, spec_of(bundles, drafter)
    budget = least(bundles["large"], spec) + 3 * MIB
    sampled = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 7}
    with Session.open(path, threads=1, ctx_size=CONTEXT) as resident:
        expected = text(resident, temperature=0), text(resident, **sampled)
    with Session.open(path, threads=1, ctx_size=CONTEXT, kv_bits=16, spec=spec, budget_bytes=budget) as session:
        assert session.run.plan.disk is not None
        assert session.run.plan.drafter == drafter
        assert (text(session, temperature=0), text(session, **sampled)) == expected
        timings = session.generate(PROMPT, n_predict=4, sampling=SamplingConfig(temperature=0)).timings
        assert timings.disk is not None
        disk = timings.as_json()["disk"]
        assert disk["bytes_per_pass"] > 0
        assert disk["passes"] >= timings.rounds.count
        assert disk["waited_ms"] >= 0


@pytest.mark.thorough
def test_a_failing_disk_ends_the_answer_and_the_session_goes_on(bundles: Mapping[str, Bundle], tmp_path: Path) -> None:
    shape = dict(SHAPES["demo"]) | {"num_hidden_layers": 3, "hidden_size": 1024, "intermediate_size": 4096}
    write_random_bundle(tmp_path / "model", shape)
    budget = least(bundles["large"]) + MIB
    with Session.open(tmp_path / "model", threads=1, ctx_size=CONTEXT, budget_bytes=budget) as session:
        expected, layout = text(session, temperature=0), tmp_path / "model" / FILE
        content = layout.read_bytes()
        modified = layout.stat().st_mtime_ns
        with layout.open("r+b") as file:
            file.truncate(len(content) // 2)
        with pytest.raises(DeviceError, match="changed while the model ran"):
            text(session, temperature=0)
        with layout.open("r+b") as file:
            file.write(content)
        os.utime(layout, ns=(modified, modified))
        assert text(session, temperature=0) == expected


@pytest.mark.nightly(sample=1)
@pytest.mark.thorough
@pytest.mark.skipif(not MemoryMeter().available, reason="the meter needs Linux' /proc/self/smaps_rollup")
@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 1.0])
def test_runs_stay_within_their_budgets_from_the_least_to_the_whole_model(
    bundles: Mapping[str, Bundle], share: float
) -> None:
    bundle, spec = bundles["large"], spec_of(bundles, "model")
    smallest = least(bundle, spec)
    whole = make_plan(bundle, RunSettings(threads=1, ctx_size=CONTEXT, spec=spec)).plan.total_bytes
    budget = int(smallest + share * (whole - smallest))
    run = {"bundle": str(bundle.path), "drafter": "model", "draft": str(bundles["draft"].path)}
    command = [sys.executable, str(CHILD), json.dumps(run | {"ctx_size": CONTEXT, "budget_bytes": budget})]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    result = json.loads(process.stdout)
    items = result["plan"]["items"]
    assert ("weights_window" in items) == (share < 1)
    assert all(answer["stop_reason"] == "context" for answer in result["answers"])
    most = max(result["peak_bytes"], result["high_water_bytes"])
    assert 0 < most <= result["plan"]["total_bytes"] <= budget
    assert result["peak_bytes"] > sum(size for name, size in items.items() if name.startswith("weights"))


@pytest.mark.thorough
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_text_whose_weights_stream(
    bundles: Mapping[str, Bundle], tmp_path: Path, number: signal.Signals, code: int
) -> None:
    """Check that what was written stays, that the run says why it ended, and that no half-written file is left."""
    config, method = bundles["large"].config, "ternary"
    write_random_bundle(tmp_path / "m", config, method, tokenizer_json=byte_tokenizer().to_str())
    before = {path.name for path in (tmp_path / "m").iterdir()}
    budget = make_plan(
        Bundle.open(tmp_path / "m"), RunSettings(threads=1, ctx_size=1024, budget_bytes=1)
    ).plan.total_bytes
    arguments = ["-m", str(tmp_path / "m"), "-p", "o", "--temp", "1", "--ignore-eos", "-c", "1024", "-t", "1"]
    command = [sys.executable, "-m", "edgedec", "generate", *arguments, "--memory-budget", f"{budget + 3 * MIB}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert os.read(process.stdout.fileno(), 1)
        process.send_signal(number)
        rest, said = process.stdout.read(), process.stderr.read().decode()
    assert process.returncode == code
    assert "streamed" in said or "disk" in said
    if number == signal.SIGINT:
        assert rest.endswith(b"\n")
        assert "ended by: interrupted" in said
    assert {path.name for path in (tmp_path / "m").iterdir()} == before | {FILE}  # the file that weights stream from
