"""Test the embedded pair: the files are small, ternary to the last bit, and of one tokenizer."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from edgedec import demo
from edgedec.bundle.bundle import Bundle
from edgedec.bundle.embedded import EMBEDDED, bundle_folder
from edgedec.demo import __main__ as main_module
from edgedec.demo import races
from edgedec.demo.messages import messages
from edgedec.errors import UsageError
from edgedec.memory.plan import Plan
from edgedec.quantize.demo_pair.check import names_in
from edgedec.quantize.readers import open_checkpoint
from edgedec.runtime.measure.choices import read_items
from edgedec.runtime.model_graph import bundle_graph
from edgedec.runtime.planning.speculation import SpecConfig
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.model_folder import open_model
from edgedec.runtime.session.session import Session
from edgedec.schemes import FloatScheme, TernaryScheme


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("a cache")


@pytest.fixture
def in_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))


def test_both_lists_of_names_are_equal() -> None:
    assert tuple(demo.NAMES) == EMBEDDED


@pytest.mark.thorough
@pytest.mark.usefixtures("in_cache")
def test_a_name_is_a_bundle_and_a_path_stays_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()
    for name in EMBEDDED:
        assert bundle_folder(name) == demo.bundle_path(name)
    for path in ("./demo", "demo/", Path("demo"), "Demo", tmp_path / "demo", "elsewhere"):
        assert bundle_folder(path) == Path(path)


@pytest.mark.thorough
@pytest.mark.usefixtures("in_cache")
def test_a_session_is_opened_by_name() -> None:
    spec = SpecConfig(drafter="model", draft="demo-draft")
    with Session.open("demo", ctx_size=64, spec=spec) as session:
        assert session.bundle.path == demo.bundle_path("demo")
        assert [draft.path for draft in session.run.drafts] == [demo.bundle_path("demo-draft")]
    bundle, _ = open_model("demo-int8", "cpu", None)
    assert bundle.path == demo.bundle_path("demo-int8")


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match="no embedded model 'dmeo'; known: demo, demo-int8, demo-draft, demo-hybrid"):
        demo.bundle_path("dmeo")


def test_the_embedded_files_are_small() -> None:
    files = [file for file in Path(demo.__file__).parent.rglob("*") if file.is_file() and file.suffix != ".pyc"]
    assert sum(file.stat().st_size for file in files) < 10_000_000


def test_the_pair_has_its_shapes_and_one_tokenizer() -> None:
    target, draft = open_checkpoint(demo.TARGET), open_checkpoint(demo.DRAFT)
    assert {key: target.config[key] for key in ("hidden_size", "head_dim", "intermediate_size")} == {
        "hidden_size": 384,
        "head_dim": 96,
        "intermediate_size": 1024,
    }
    assert 4 <= target.config["num_hidden_layers"] <= 6
    assert (draft.config["hidden_size"], draft.config["head_dim"]) == (96, 96)
    assert target.tokenizer_json == draft.tokenizer_json

    def parameters(name: str) -> int:
        checkpoint = {"target": target, "draft": draft}[name]
        return sum(int(np.prod(info.shape)) for info in checkpoint.tensors.values())

    assert parameters("draft") * 8 <= parameters("target")


@pytest.mark.usefixtures("in_cache")
def test_the_hybrid_is_as_large_as_the_target_and_steered_by_floats() -> None:
    hybrid, target = open_checkpoint(demo.HYBRID), open_checkpoint(demo.TARGET)
    sizes = [sum(int(np.prod(info.shape)) for info in model.tensors.values()) for model in (hybrid, target)]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.02)
    assert hybrid.tokenizer_json == target.tokenizer_json
    assert sum(file.stat().st_size for file in demo.HYBRID.iterdir()) < 3_000_000
    bundle = Bundle.open(demo.bundle_path("demo-hybrid"))
    graph = bundle_graph(bundle, 16)
    assert (len(graph.states), len(graph.recurrent)) == (1, 6), (
        "three of four layers have a convolution and a delta net"
    )
    kinds = {name: type(bundle.tensors[name].scheme) for op in graph.operations for name in op.weight_names}
    matrices = {
        name: kind for name, kind in kinds.items() if ".layers." in name and len(graph.weights[name].shape) == 2
    }
    assert {name for name, kind in matrices.items() if kind is FloatScheme} == set(graph.steering_weights())
    assert set(matrices.values()) == {FloatScheme, TernaryScheme}


@pytest.mark.thorough
@pytest.mark.usefixtures("in_cache")
def test_the_draft_of_the_pair_guesses_for_the_hybrid() -> None:
    spec = SpecConfig(drafter="model", draft="demo-draft", draft_max=4)
    greedy = SamplingConfig(temperature=0)
    texts = []
    for settings in (SpecConfig(), spec):
        with Session.open("demo-hybrid", ctx_size=256, spec=settings) as session:
            texts.append(session.generate("Once upon a time", n_predict=60, sampling=greedy))
    assert texts[0].tokens == texts[1].tokens
    assert sum(texts[1].timings.rounds.accepted) > 0
    assert texts[1].timings.lossless == "exact"


@pytest.mark.usefixtures("in_cache")
def test_the_target_keeps_its_weights_bit_for_bit() -> None:
    checkpoint, bundle = open_checkpoint(demo.TARGET), Bundle.open(demo.bundle_path())
    ternary = [name for name, tensor in bundle.tensors.items() if isinstance(tensor.scheme, TernaryScheme)]
    assert len(ternary) == 7 * checkpoint.config["num_hidden_layers"]
    for name in ternary:
        stored = bundle.weight(name).dense()
        original = checkpoint.load(name)
        assert stored.dtype == original.dtype == np.float32
        assert np.array_equal(stored, original), name
        assert len(np.unique(np.abs(original[original != 0]))) == 1


@pytest.mark.usefixtures("in_cache")
@pytest.mark.parametrize("name", EMBEDDED)
def test_an_embedded_model_continues_a_story(name: str) -> None:
    """Check that it writes words of the language that it was trained on, and varies them."""
    vocabulary = set(demo.HELD_OUT.read_text("utf-8").split())
    with Session.open(demo.bundle_path(name), ctx_size=256) as session:
        prompt = session.encode("Once upon a time")
        answer = session.generate(prompt, n_predict=60, sampling=SamplingConfig(temperature=0))
        again = session.generate(prompt, n_predict=60, sampling=SamplingConfig(temperature=0))
    words = answer.text.split()
    assert again.tokens == answer.tokens
    assert len(words) > 25
    assert np.mean([word in vocabulary for word in words]) > 0.6
    assert len(set(words)) > 0.4 * len(words)


@pytest.mark.thorough
@pytest.mark.usefixtures("in_cache")
def test_the_first_sight_is_a_story_and_answers_about_it(capsys: pytest.CaptureFixture[str]) -> None:
    output = StringIO()
    console = Console(file=output, width=200, soft_wrap=True)
    with main_module._open_target() as session:
        story = main_module._story(session, console)
        assert capsys.readouterr().out == f"> {main_module.REQUEST}\n{story}"
        main_module._questions(session, story, console)
    assert len(output.getvalue().split("\n\n")[0].splitlines()) == 2, "two lines of plan come before the story"
    assert "dog" in story
    assert "snowman" in story
    answers = capsys.readouterr().out.split("> ")[1:]
    who, weather, found, opposite = (answer.split("?\n")[1] for answer in answers)
    (hero,) = [name for name in names_in(story)[:1] if name in who]
    assert f"dog named {hero}" in story
    assert "snowy" in weather
    assert re.search(rf"in the snow: a (?:\w+ )?{re.split('[ .]', found)[-2]}", story)
    assert "cold" in opposite


def test_the_line_of_the_plan_adds_up() -> None:
    plan = Plan(
        fits=True,
        budget_bytes=32 << 20,
        total_bytes=20 << 20,
        items={"weights": 4 << 20, "kv": 10 << 20, "session": 1 << 20, "host": 5 << 20, "load_transient": 1 << 20},
        baseline_bytes=0,
        ctx_size=2048,
        kv_bits=16,
        drafter="auto",
        draft_tokens=8,
    )
    assert main_module.plan_line(plan) == (
        "plan: 4.0 MiB weights + 10.0 MiB cache + 6.0 MiB the rest = 20.0 MiB of 32MiB; context 2048"
    )


def test_the_story_comes_before_all_that_takes_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Check the order of the steps, and that only the target is made before the story."""
    order: list[str] = []

    def note(name: str, result: object = None) -> Callable[..., object]:
        def called(*args: object) -> object:
            order.append(name)
            return result

        return called

    monkeypatch.setattr(demo, "bundle_path", note("the target", tmp_path))
    monkeypatch.setattr(main_module, "_open_target", nullcontext)
    for name in ("_story", "_questions", "_quality_table"):
        monkeypatch.setattr(main_module, name, note(name))
    monkeypatch.setattr(races, "show_races", note("races", tmp_path / "a padded model"))
    assert main_module.main() == 0
    assert order == ["the target", "_story", "_questions", "races", "_quality_table"]
    shown = capsys.readouterr().out
    times = shown[shown.index("done in ") :]
    assert re.match(r"done in \d+ s \(1/4 \d+ s, 2/4 \d+ s, 3/4 \d+ s, 4/4 \d+ s\)\. What to try next:", times)
    assert ".venv/bin/edgedec chat -m demo\n" in times
    assert f"chat -m '{tmp_path}/a padded model' -md demo-draft" in times


def answers_of(session: Session, asks: Sequence[str]) -> list[str]:
    """Return the greedy answers of one conversation in which the user says ``asks``, one after the other."""
    said: list[str] = []
    for ask in asks:
        said.append(ask)
        answer = session.generate(
            session.encode_chat(messages(said)), n_predict=400, sampling=SamplingConfig(temperature=0)
        )
        said.append(answer.text.strip())
    return said[1::2]


@pytest.mark.thorough
@pytest.mark.usefixtures("in_cache")
def test_a_conversation_of_ten_turns_is_about_its_own_stories() -> None:
    asks = (
        "Tell me a story about a girl named Ruby and a kite.",
        "Who is the story about?",
        "Where did they go?",
        "Was Ruby happy in the end?",
        "Give it a title.",
        "What is two plus three?",
        "Tell me a story about an owl and a lantern.",
        "Who is in the story?",
        "Can you make it shorter?",
        "What was the first story about?",
    )
    with Session.open(demo.bundle_path(), ctx_size=2048) as session:
        first, who, where, end, title, total, second, people, shorter, back = answers_of(session, asks)
    assert "Ruby" in first
    assert "kite" in first
    assert "Ruby" in who
    (place,) = re.findall(r" went to (the \w+)", first)
    assert place in where
    assert end.startswith("No" if "sad" in first else "Yes")
    assert "Ruby" in title
    assert "five" in total
    assert "owl" in second
    assert "lantern" in second
    assert all(name in people for name in names_in(second))
    assert len(shorter.split()) < 0.8 * len(second.split())
    assert names_in(second)[0] in shorter
    assert "Ruby" in back


@pytest.mark.usefixtures("in_cache")
def test_an_embedded_model_is_written_once() -> None:
    first = demo.bundle_path("demo-draft")
    before = (first / "manifest.json").stat().st_mtime_ns
    assert demo.bundle_path("demo-draft") == first
    assert (first / "manifest.json").stat().st_mtime_ns == before


@pytest.mark.usefixtures("in_cache")
def test_a_damaged_bundle_in_the_cache_is_written_again() -> None:
    path = demo.bundle_path("demo-draft")
    (path / "weights.bin").write_bytes(b"")
    assert Bundle.open(demo.bundle_path("demo-draft")).weight("model.norm.weight") is not None


@pytest.mark.usefixtures("in_cache")
@pytest.mark.parametrize("remainder", ["no manifest", "a file", "a dangling link"])
def test_a_remainder_of_a_bundle_in_the_cache_is_replaced(remainder: str) -> None:
    path = demo.bundle_path("demo-draft")
    if remainder == "no manifest":
        (path / "manifest.json").unlink()
    else:
        shutil.rmtree(path)
        path.write_bytes(b"") if remainder == "a file" else path.symlink_to("nowhere")
    assert demo.bundle_path("demo-draft") == path
    assert Bundle.open(path).weight("model.norm.weight") is not None
    assert [entry.name for entry in path.parent.iterdir() if entry.name.startswith(".demo-draft")] == []


def test_questions_and_stories_can_be_read() -> None:
    items = read_items(demo.CHOICES)
    assert {item.category for item in items} == {"story", "fact"}
    assert all(len(item.choices) == 4 for item in items)
    assert len(demo.HELD_OUT.read_text("utf-8").strip().split("\n\n")) >= 20
