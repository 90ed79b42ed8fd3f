"""Test values of an interpreted accelerator for drafters and embeddings: the rows of texts, their memory, and refusals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.bundle.bundle import Bundle
from edgedec.device import device_names, device_taps
from edgedec.errors import DeviceError, UnsupportedError
from edgedec.hw.plan.generator import HardwareGenerator
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from edgedec.reference.integer_profile.calibrate import calibrate
from edgedec.reference.integer_profile.calibration import Calibration
from edgedec.reference.integer_profile.model import IntegerModel, prepare
from edgedec.reference.integer_profile.taps import TapRecorder
from edgedec.runtime.accelerator import model as model_module
from edgedec.runtime.accelerator.model import BufferSizes
from edgedec.runtime.accelerator.options import AcceleratorOptions
from edgedec.runtime.accelerator.taps import check_taps
from edgedec.runtime.planning.planning import make_plan
from edgedec.runtime.planning.speculation import SpecConfig
from edgedec.runtime.protocols import I32, Limits, Pass, PassResult, State
from edgedec.runtime.run_settings import RunSettings
from edgedec.runtime.run_sizes import run_rows
from edgedec.runtime.session.session import Session
from edgedec.runtime.targets import open_target
from edgedec.runtime.targets.accelerator import ProgramTarget
from edgedec.runtime.visibility import tree
from tests.edgedec.cli.support.make_known_model import byte_tokenizer
from tests.runtime.test_taps import RecordingDrafter, begin, end

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 264,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
TAPS = ("layers.0.out", "layers.1.out")
STORY = "Anna went for berries, for berries"
OPTIONS = AcceleratorOptions(overrides={"slots": 4})
LIMITS = Limits(nodes=4, depth=3, positions=96)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundles") / "b"
    write_random_bundle(path, CONFIG, "int8", tokenizer_json=byte_tokenizer().to_str())
    return path


@pytest.fixture(scope="module")
def calibration(path: Path) -> Calibration:
    return calibrate(Bundle.open(path), [np.arange(1, 60, dtype=np.int32)])


@pytest.fixture(scope="module")
def profile(path: Path, calibration: Calibration) -> IntegerModel:
    return prepare(Bundle.open(path), calibration)


@pytest.fixture(autouse=True)
def short_calibration(calibration: Calibration, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_module, "calibrated", lambda bundle, progress=None: calibration)
    monkeypatch.setattr("tests.runtime.test_taps.TAPS", TAPS)


def session(path: Path, drafter: Any = "none", **options: Any) -> Session:
    spec = SpecConfig(drafter=drafter, draft_max=3, tree_nodes=4, policy="chain" if drafter == "none" else "dynamic")
    return Session.open(path, threads=1, ctx_size=96, device="interpreter", accelerator=OPTIONS, spec=spec, **options)


@pytest.fixture
def target(path: Path) -> Iterator[ProgramTarget]:
    opened = open_target(
        Bundle.open(path), device="interpreter", limits=LIMITS, accelerator=OPTIONS, taps=(*TAPS, "final_norm")
    )
    assert isinstance(opened, ProgramTarget)
    yield opened
    opened.close()


def run(target: ProgramTarget, state: State, ids: list[int], **options: Any) -> PassResult:
    positions = options.pop("positions", np.arange(state.length, state.length + len(ids), dtype=np.int32))
    work = Pass(ids=np.array(ids, np.int32), positions=positions, **options)
    (result,) = target.submit([(state, work)]).result()
    return result


def rows(n: int) -> I32:
    return np.arange(n, dtype=np.int32)


def cold(profile: IntegerModel, ids: list[int]) -> dict[str, Any]:
    """Return the rows of a text by the definition, float32 [n, hidden] by name."""
    taps = TapRecorder(profile, TAPS)
    profile.open().forward(np.array(ids, np.int32), trace=taps.trace)
    return {name: taps.rows(name).real for name in TAPS}


@pytest.mark.thorough
def test_rows_of_texts_have_the_values_of_the_profile(path: Path, profile: IntegerModel) -> None:
    """Write a text with and without a drafter that reads values, and others that keep a part of its rows."""
    with session(path) as plain:
        stream = begin(plain, STORY, 10)
        end(plain, stream)
        script = [*plain.encode(STORY).tolist(), *stream.answer.tokens]
    drafter = RecordingDrafter(TAPS, script)
    with session(path, drafter) as opened:
        for prompt, kept in ((STORY, 0), (STORY[:-3] + "xyz", 25), (STORY[:9], 5)):
            stream = begin(opened, prompt, 10)
            end(opened, stream)
            (draft,) = drafter.drafts
            assert stream.answer.timings.prompt_kept >= kept
            if prompt == STORY:
                assert stream.answer.tokens == script[-10:]
                assert sum(stream.answer.timings.rounds.accepted) > 0
            expected = cold(profile, draft.ids)
            assert len(draft.ids) >= len(prompt) + 8
            assert np.array_equal(np.array(draft.rows), np.concatenate([expected[name] for name in TAPS], axis=1))


@pytest.mark.thorough
def test_an_embedding_is_made_of_the_values_of_the_profile(path: Path, profile: IntegerModel) -> None:
    with session(path, embeddings=True) as opened:
        ids = opened.encode(STORY)
        found = opened.embed(STORY, pooling="mean")
        stream = begin(opened, STORY, 3)
        end(opened, stream)
        again = opened.embed(STORY, pooling="mean")
    vector = cold(profile, ids.tolist())[TAPS[-1]].astype(np.float64).mean(axis=0)
    np.testing.assert_allclose(found, vector / np.linalg.norm(vector), rtol=1e-6)
    assert found.tobytes() == again.tobytes()


def test_each_pass_has_its_own_rows(target: ProgramTarget, profile: IntegerModel) -> None:
    """Exchange two sequences on the device, fork one, run a tree, and ask for values with and without logits."""
    text, other = [5, 6, 7, 8, 9, 10, 11], [90, 91, 92]
    expected = cold(profile, text)
    first, second = target.open(LIMITS), target.open(LIMITS)
    a, b = target.submit(
        [
            (state, Pass(ids=np.array(ids[:3], np.int32), positions=rows(3), taps=TAPS))
            for state, ids in ((first, text), (second, other))
        ]
    ).result()
    first.commit(rows(3))
    second.commit(rows(3))
    assert not np.array_equal(a.taps["layers.0.out"], b.taps["layers.0.out"])
    fork = first.fork()
    parents = np.array([-1, 0, 0, 2], np.int32)
    positions = np.array([3, 4, 4, 5], np.int32)
    for state, logits in ((first, rows(0)), (fork, rows(1)), (fork, None)):
        tokens = [text[3], 200, text[4], text[5]]
        result = run(
            target, state, tokens, positions=positions, visible=tree(parents), taps=TAPS[::-1], logits=logits, top_k=2
        )
        assert set(result.taps) == set(TAPS)
        for name in TAPS:
            assert np.array_equal(a.taps[name], expected[name][:3])
            assert np.array_equal(result.taps[name][[0, 2, 3]], expected[name][3:6])
            assert result.taps[name].dtype == np.float32
    run(target, second, [1])
    assert not run(target, second, [1]).taps
    few = run(target, fork, text[3:6], taps=("final_norm",), logits=np.array([2, 0], np.int32))
    every = run(target, fork, text[3:6], taps=("final_norm",), logits=rows(3))
    assert np.array_equal(few.taps["final_norm"], every.taps["final_norm"][[2, 0]])
    assert run(target, fork, text[3:6], taps=("final_norm",), logits=rows(0)).taps["final_norm"].shape == (0, 32)


def test_the_plan_counts_the_values_on_the_device_and_on_the_host(path: Path, target: ProgramTarget) -> None:
    bundle, drafter = Bundle.open(path), RecordingDrafter((*TAPS, "layers.0.attn_norm"))
    options = AcceleratorOptions(overrides={"slots": 4}, generator=HardwareGenerator())
    found = {}
    for name, spec in (("plain", SpecConfig()), ("taps", SpecConfig(drafter=drafter, draft_max=3))):
        choice = make_plan(bundle, RunSettings(device="interpreter", ctx_size=96, accelerator=options, spec=spec))
        found[name] = choice.plan
        assert ("taps" in choice.plan.phases["run"]) == (name == "taps")
    device, plain = BufferSizes.of(target.program), found["plain"].phases["run"]
    assert device.taps == target.footprint(LIMITS)["taps"]
    item, limits = found["taps"].phases["run"]["taps"], Limits(nodes=found["taps"].pass_rows, depth=3, positions=96)
    # Two vectors, a norm and its roots have a page each, after the rest of that of the logits.
    pages = 4 * 4096 + -plain["logits"] % 4096
    assert item == pages + 3 * run_rows(limits) * 3 * 32 * 4
    assert found["taps"].phases["run"]["logits"] == plain["logits"] == target.footprint(LIMITS)["logits"]
    dram = [next(use for use in plan.memories if use.name == "DRAM").used_bytes for plan in found.values()]
    assert dram[1] - dram[0] >= 4 * 4096, "in whole blocks"
    assert {use.name for use in found["plain"].memories} == {use.name for use in found["taps"].memories}


def test_a_recording_has_the_values(path: Path, tmp_path: Path) -> None:
    """Replay a pass with values; a recording of another accelerator is refused."""
    bundle, results = Bundle.open(path), []
    record = AcceleratorOptions(overrides={"slots": 4}, record=tmp_path / "r.rec")
    for device, options in (("interpreter", record), (f"replay:{tmp_path / 'r.rec'}", OPTIONS)):
        opened = open_target(bundle, device=device, limits=LIMITS, accelerator=options, taps=TAPS)
        assert isinstance(opened, ProgramTarget)
        results.append(run(opened, opened.open(LIMITS), [5, 6, 7], taps=TAPS).taps)
        opened.close()
    for name in TAPS:
        assert np.array_equal(results[0][name], results[1][name])
    with pytest.raises(DeviceError, match="configuration"):
        open_target(bundle, device=f"replay:{tmp_path / 'r.rec'}", limits=LIMITS, accelerator=OPTIONS)


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", [name for name in device_names() if not device_taps(name)])
def test_devices_of_board_bundles_refuse_values_by_name(device: str) -> None:
    check_taps(device, OPTIONS, ())
    check_taps("sim", OPTIONS, TAPS)
    with pytest.raises(
        UnsupportedError, match=rf"--device {device} returns logits only, not layers.0.out, layers.1.out: its program"
    ):
        check_taps(f"{device}:somewhere", OPTIONS, TAPS)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("layers.0.q", r"cannot write 'layers\.0\.q': it is no vector that becomes codes"),
        ("layers.2.out", r"has no value 'layers\.2\.out' for every row \(it has layers.0.out to layers.1.out\)"),
    ],
)
def test_a_value_that_the_program_lacks_is_refused_before_it_is_compiled(path: Path, name: str, message: str) -> None:
    spec = SpecConfig(drafter=RecordingDrafter(("layers.0.out", name)))
    with pytest.raises(UnsupportedError, match=message):
        make_plan(Bundle.open(path), RunSettings(device="interpreter", ctx_size=64, accelerator=OPTIONS, spec=spec))


def test_a_pass_with_another_value_is_refused(target: ProgramTarget) -> None:
    with pytest.raises(
        UnsupportedError, match=r"compiled without the tap 'layers\.0\.attn'; open the target with taps="
    ):
        run(target, target.open(LIMITS), [5], taps=("layers.0.out", "layers.0.attn"))
