"""Test ``edgedec eval`` with questions, with several bundles, and with a picture; test_commands.py tests text alone."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from edgedec.cli import eval as eval_module
from edgedec.cli._plot import Panel, write_plot
from edgedec.errors import EdgedecError
from edgedec.host.install_hint import install_extra
from edgedec.runtime.measure.choices import wilson
from tests.edgedec.cli.conftest import Edgedec
from tests.edgedec.cli.support.make_known_model import write_bundle, write_checkpoint

TEXT = {"kv_policy", "perplexity", "tokens", "nats_per_token", "bits_per_byte", "ctx_size", "seconds"}
TALLY = {
    "items",
    "correct",
    "correct_norm",
    "accuracy",
    "accuracy_interval",
    "accuracy_norm",
    "accuracy_norm_interval",
    "chance",
}
# The model writes "Hi!" after "?", and after any other letter but o the same letter again.
QUESTIONS = [
    {"question": "?", "choices": ["Ho!", "Hi!", "ab"], "answer": 1, "category": "greetings", "id": "hello"},
    {"question": "xx", "choices": ["xx", "yy"], "answer": 1, "category": "a trap"},
    {"question": "yy", "choices": ["xx", "yy"], "answer": 1},
]


@pytest.fixture
def questions(elsewhere: None) -> Path:
    path = Path("questions.jsonl")
    path.write_text("\n".join(map(json.dumps, QUESTIONS)))
    return path


@pytest.fixture(scope="session")
def other_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a bundle of the same weights in which "Hi" is one token, with the id of the zero byte, which has none."""
    folder = tmp_path_factory.mktemp("other")
    checkpoint = write_checkpoint(folder / "checkpoint")
    tree = json.loads((checkpoint / "tokenizer.json").read_text("utf-8"))
    vocab = tree["model"]["vocab"]
    vocab["Hi"] = vocab.pop("\u0100")  # ByteLevel's spelling of a zero
    tree["model"]["merges"] = [["H", "i"]]
    (checkpoint / "tokenizer.json").write_text(json.dumps(tree), "utf-8")
    return write_bundle(checkpoint, folder / "other.edgedec")


@pytest.fixture
def no_model_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if a model is opened: mistakes must be found before the weights of a bundle are loaded."""

    def opened(*args: object, **options: object) -> None:
        pytest.fail("a model was opened")

    monkeypatch.setattr("edgedec.runtime.targets.open_target", opened)


# Questions


def test_choices_json_is_complete(edgedec: Edgedec, bundle: Path, questions: Path) -> None:
    data: dict[str, Any] = edgedec("eval", "-m", bundle, "--choices", questions, "--json").json
    assert set(data) == {"kv_policy", "choices"}
    choices = data["choices"]
    assert set(choices) == TALLY | {"by_category", "seconds"}
    assert (choices["items"], choices["correct"], choices["correct_norm"]) == (3, 2, 2)
    assert choices["accuracy"] == choices["accuracy_norm"] == pytest.approx(2 / 3)
    assert choices["accuracy_interval"] == choices["accuracy_norm_interval"] == pytest.approx(wilson(2, 3))
    assert choices["chance"] == pytest.approx((1 / 3 + 1 / 2 + 1 / 2) / 3)
    assert {name: (t["items"], t["correct"]) for name, t in choices["by_category"].items()} == {
        "greetings": (1, 1),
        "a trap": (1, 0),
    }
    assert all(set(tally) == TALLY for tally in choices["by_category"].values())


def test_text_and_choices_together(edgedec: Edgedec, bundle: Path, questions: Path) -> None:
    Path("text").write_text("to be or not to be")
    data: dict[str, Any] = edgedec("eval", "-m", bundle, "--text", "text", "--choices", questions, "--json").json
    assert set(data) == TEXT | {"choices"}
    alone = edgedec("eval", "-m", bundle, "--text", "text", "--json").json
    assert set(alone) == TEXT
    assert data["perplexity"] == pytest.approx(alone["perplexity"])
    assert data["ctx_size"] == alone["ctx_size"] == 512


def test_a_long_question_widens_the_context_but_not_the_windows(edgedec: Edgedec, bundle: Path) -> None:
    Path("q").write_text(json.dumps({"question": "x" * 700, "choices": ["x", "y"], "answer": 0}))
    Path("text").write_text("o" * 600)
    data: dict[str, Any] = edgedec("eval", "-m", bundle, "--choices", "q", "--text", "text", "--json").json
    assert (data["choices"]["correct"], data["ctx_size"]) == (1, 512)


def test_choices_are_a_table(edgedec: Edgedec, bundle: Path, questions: Path) -> None:
    lines = edgedec("eval", "-m", bundle, "--choices", questions).stdout.splitlines()
    words = [line.split() for line in lines]
    assert words[0][:2] == ["questions", "3,"]
    assert lines[1].split(maxsplit=1) == ["accuracy", "66.7 % (20.8 to 93.9)"]
    assert lines[3].split() == ["chance", "44.4", "%"]
    assert ["a", "trap"] in [row[:2] for row in words]
    assert "95 % interval" in lines[-1]


# Several bundles


def test_json_compares_several_bundles(edgedec: Edgedec, bundle: Path, mute_bundle: Path, questions: Path) -> None:
    Path("text").write_text("o?Hi!")
    options = ("--text", "text", "--choices", questions, "--json")
    data: dict[str, Any] = edgedec("eval", "-m", bundle, "-m", mute_bundle, *options).json
    assert set(data) == {"compared_by", "models"}
    assert data["compared_by"] == "perplexity"
    first, second = data["models"]
    facts = {"model", "method", "bits_per_weight", "bytes", "ratio", "choices"}
    assert set(first) == set(second) == TEXT | facts
    assert (first["model"], second["model"]) == (str(bundle), str(mute_bundle))
    assert first["method"] == "float"
    assert first["bits_per_weight"] == pytest.approx(32)
    assert first["bytes"] == sum(file.stat().st_size for file in bundle.iterdir())
    assert (first["ratio"], second["ratio"]) == (1, pytest.approx(1))
    alone: dict[str, Any] = edgedec("eval", "-m", bundle, *options).json
    for key in set(alone) - {"seconds", "choices"}:
        assert first[key] == pytest.approx(alone[key])
    assert first["choices"]["correct"] == alone["choices"]["correct"]


def test_bundles_with_different_tokenizers_are_compared_by_bits_per_byte(
    edgedec: Edgedec, bundle: Path, other_bundle: Path
) -> None:
    Path("text").write_text("?Hi!?Hi!")
    options = ("eval", "-m", bundle, "-m", other_bundle, "--text", "text")
    data: dict[str, Any] = edgedec(*options, "--json").json
    assert data["compared_by"] == "bits_per_byte"
    first, second = data["models"]
    assert (first["tokens"], second["tokens"]) == (8, 6)
    assert second["ratio"] == pytest.approx(second["bits_per_byte"] / first["bits_per_byte"])
    assert second["ratio"] != pytest.approx(second["perplexity"] / first["perplexity"])
    lines = edgedec(*options).stdout.splitlines()
    assert "bits per byte" in lines[0]
    assert "perplexity" not in lines[0]
    assert f"{second['bits_per_byte']:.4f}" in lines[2]
    assert [line for line in lines if "different tokenizers" in line] == [lines[3]]


def test_a_comparison_is_a_table(edgedec: Edgedec, bundle: Path, mute_bundle: Path, questions: Path) -> None:
    Path("text").write_text("o?Hi!")
    options = ("eval", "-m", bundle, "-m", mute_bundle, "--choices", questions)
    head, first, second, last = edgedec(*options, "--text", "text").stdout.splitlines()
    columns = ("model", "method", "bits/weight", "on disk", "perplexity", "to first", "accuracy", "accuracy_norm")
    assert [column for column in columns if column not in head] == []
    assert first.startswith(f"{bundle} ")
    assert second.startswith(f"{mute_bundle} ")
    assert "float" in first
    assert " 1.0000 " in second
    assert "66.7 % (20.8 to 93.9)" in second
    assert last.startswith("3 questions, chance 44.4 %.")
    head, *_ = edgedec(*options).stdout.splitlines()
    assert "perplexity" not in head


def test_a_comparison_uses_one_window_for_all_bundles(edgedec: Edgedec, bundle: Path, tmp_path: Path) -> None:
    """Check that the smallest context limits all, so that a model with a short one does not look worse."""
    checkpoint = write_checkpoint(tmp_path / "short")
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 16}))
    short = write_bundle(checkpoint, tmp_path / "short.edgedec")
    Path("text").write_text("o" * 40)
    data: dict[str, Any] = edgedec("eval", "-m", bundle, "-m", short, "--text", "text", "--json").json
    assert [entry["ctx_size"] for entry in data["models"]] == [16, 16]
    assert data["models"][1]["ratio"] == pytest.approx(1)


@pytest.mark.thorough
def test_bundles_of_the_configuration_file_are_compared(edgedec: Edgedec, bundle: Path, mute_bundle: Path) -> None:
    Path("text").write_text("o")
    Path("edgedec.toml").write_text(f"[eval]\nmodel = {json.dumps(str(bundle))}\ntext = 'text'\n")
    assert set(edgedec("eval", "--json").json) == TEXT
    Path("edgedec.toml").write_text(f"[eval]\nmodel = {json.dumps([str(bundle), str(mute_bundle)])}\ntext = 'text'\n")
    assert set(edgedec("eval", "--json").json) == {"compared_by", "models"}


# The picture


@pytest.mark.thorough
def test_a_plot_is_written(edgedec: Edgedec, bundle: Path, other_bundle: Path, questions: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra `plot`")
    Path("text").write_text("?Hi!")
    starts = {"a.png": b"\x89PNG\r\n\x1a\n", "new folder/b.SVG": b"<?xml", "c.pdf": b"%PDF"}
    options = ("eval", "-m", bundle, "-m", other_bundle, "--text", "text", "--choices", questions, "--json")
    for name, start in starts.items():
        outcome = edgedec(*options, "--plot", name)
        assert (outcome.code, len(outcome.json["models"])) == (0, 2)  # type: ignore[arg-type]
        assert Path(name).read_bytes().startswith(start)
    picture = Path("new folder/b.SVG").read_text("utf-8")
    for word in ("size on disk, MiB", "bits per byte (lower is better)", "accuracy, %", "chance", "other.edgedec"):
        assert f"<!-- {word}" in picture or word in picture
    assert "perplexity" not in picture
    edgedec("eval", "-m", bundle, "--text", "text", "--plot", "one.svg")
    assert "perplexity (lower is better)" in Path("one.svg").read_text("utf-8")


def test_names_are_drawn_as_they_are(tmp_path: Path) -> None:
    r"""Draw names that matplotlib would set as a formula ($x$), fail at ($\\x$), or hide (a leading underscore)."""
    pytest.importorskip("matplotlib", reason="the extra `plot`")
    names = ["$\\x$", "_hidden", "long/" * 100 + "end"]
    write_plot(tmp_path / "x.svg", names, [1 << 20, 1 << 22, 1 << 30], [Panel(label="y", values=[1.0, 2.0, 3.0])])
    picture = (tmp_path / "x.svg").read_text("utf-8")
    assert "<!-- $\\x$ -->" in picture
    assert "<!-- _hidden -->" in picture
    assert "long/end -->" in picture
    assert "long/" * 20 not in picture


def test_a_failed_picture_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figure = pytest.importorskip("matplotlib.figure", reason="the extra `plot`")
    path = tmp_path / "pictures" / "x.png"
    path.parent.mkdir()
    path.write_bytes(b"an older one")

    def fail(self: object, name: Path, **options: object) -> None:
        Path(name).write_bytes(b"\x89PN")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(figure.Figure, "savefig", fail)
    with pytest.raises(EdgedecError, match="the disk is full"):
        write_plot(path, ["a"], [1], [Panel(label="y", values=[1.0])])
    assert [file.name for file in path.parent.iterdir()] == ["x.png"]
    assert path.read_bytes() == b"an older one"


# Mistakes


BUNDLE, OTHER = "BUNDLE", "OTHER"


@pytest.mark.thorough(sample=6)
@pytest.mark.usefixtures("no_model_opened", "questions")
@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("eval -m BUNDLE", 2, "name a text with --text FILE, questions with --choices FILE, or both"),
        ("eval --text text", 2, "Missing option '-m' / '--model'"),
        ("eval -m BUNDLE --choices missing", 2, "missing: there is no such file"),
        ("eval -m BUNDLE --choices .", 2, ".: cannot be read: Is a directory"),
        ("eval -m BUNDLE --choices bad", 2, "bad: line 2: has no 'answer'; needed: question, choices, answer"),
        ("eval -m BUNDLE --text missing --choices questions.jsonl", 2, "--text missing: there is no such file"),
        ("eval -m BUNDLE --choices questions.jsonl -c 1", 2, "--ctx-size must be at least 2"),
        ("eval -m BUNDLE --choices questions.jsonl -c -5", 2, "--ctx-size must be at least 2"),
        ("eval -m BUNDLE --choices questions.jsonl -c 5000", 2, "--ctx-size must be 1 to 4096"),
        (
            "eval -m BUNDLE --choices questions.jsonl -c 2",
            1,
            "line 1: the question and its longest choice have 4 tokens",
        ),
        ("eval -m BUNDLE --choices long", 1, "long: line 1: the question and its longest choice have 5001 tokens"),
        ("eval -m BUNDLE -m OTHER --choices lost", 2, "lost: line 1: choices[1] has no token in this model's"),
        ("eval -m BUNDLE -m OTHER --choices lost", 2, "edgedec: -m "),
        ("eval -m BUNDLE -m nowhere --text text", 2, "nowhere: no such bundle"),
        ("eval -m BUNDLE -m . --text text", 1, ".: holds no manifest.json"),
        ("eval -m BUNDLE --text text --device gpy", 2, "there is no device 'gpy'"),
        ("eval -m BUNDLE --text text --plot x.jpg", 2, "--plot x.jpg: must end in .png, .svg or .pdf"),
        ("eval -m BUNDLE --text text --plot png", 2, "--plot png: must end in .png, .svg or .pdf"),
        ("eval -m BUNDLE --text text --plot folder.png", 2, "--plot folder.png: is a folder; name a file"),
        ("eval -m BUNDLE --text text --plot text/x.png", 2, "cannot be written; choose another folder"),
    ],
)
def test_mistakes_are_found_before_a_model_is_opened(
    edgedec: Edgedec, bundle: Path, other_bundle: Path, words: str, code: int, message: str
) -> None:
    Path("folder.png").mkdir()
    Path("text").write_text("o")
    Path("bad").write_text(json.dumps(QUESTIONS[0]) + '\n{"question": "", "choices": ["a", "b"]}\n')
    Path("long").write_text(json.dumps({"question": "x" * 5000, "choices": ["x", "y"], "answer": 0}))
    Path("lost").write_text(json.dumps({"question": "x", "choices": ["x", "\0"], "answer": 0}))
    paths = {BUNDLE: str(bundle), OTHER: str(other_bundle)}
    outcome = edgedec(*(paths.get(word, word) for word in words.split()))
    assert message in outcome.stderr
    assert (outcome.code, outcome.stdout) == (code, "")


@pytest.mark.usefixtures("no_model_opened")
def test_without_matplotlib_a_plot_is_refused(edgedec: Edgedec, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    Path("text").write_text("o")
    outcome = edgedec("eval", "-m", bundle, "--text", "text", "--plot", "x.png")
    assert (outcome.code, outcome.stdout) == (3, "")
    assert install_extra("plot") in outcome.stderr
    assert not Path("x.png").exists()


def test_results_are_shown_even_if_the_picture_fails(
    edgedec: Edgedec, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib", reason="the extra `plot`")

    def fail(*args: object) -> None:
        raise EdgedecError("cannot write x.png: the disk is full")

    monkeypatch.setattr(eval_module, "write_plot", fail)
    Path("text").write_text("o")
    outcome = edgedec("eval", "-m", bundle, "--text", "text", "--plot", "x.png", "--json")
    assert outcome.code == 1
    assert set(outcome.json) == TEXT


# Docs


def test_every_key_is_documented(edgedec: Edgedec, bundle: Path, questions: Path, project_root: Path) -> None:
    text = (project_root / "docs" / "command-line.md").read_text("utf-8")
    section = text.partition("\n## eval\n")[2].partition("\n## ")[0]
    Path("text").write_text("o")
    options = ("eval", "-m", bundle, "-m", bundle, "--text", "text", "--choices", questions, "--json")
    data: dict[str, Any] = edgedec(*options).json
    (entry, _) = data["models"]
    for key in [*data, *entry, *entry["choices"]]:
        assert f"`{key}`" in section, key
    for name in ("--choices", "--plot", "--text"):
        assert f"`{name}" in section


def test_the_documented_example_is_read(edgedec: Edgedec, bundle: Path, project_root: Path) -> None:
    text = (project_root / "docs" / "evaluation.md").read_text("utf-8")
    examples = [line.strip() for line in text.splitlines() if line.startswith('    {"')]
    assert len(examples) >= 2
    Path("q").write_text("\n".join(examples))
    data: dict[str, Any] = edgedec("eval", "-m", bundle, "--choices", "q", "--json").json
    assert data["choices"]["items"] == len(examples)
