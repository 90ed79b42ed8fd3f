"""Test ``edgedec plan --advise-draft``: the law of the kept measurements, its chart, the advice, drafts of one's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from edgedec import demo
from edgedec.cli._draft_advice import chart
from edgedec.runtime.measure.acceptance import PAST, WrittenText, measure_acceptance
from edgedec.runtime.planning.draft_law import DraftLaw, MeasuredDraft
from edgedec.runtime.sampling.sampling import SamplingConfig
from tests.edgedec.cli.conftest import Edgedec
from tests.runtime.support.bench_decoders import VOCAB, make_pair

WIDTHS = (16, 32, 64)  # hidden sizes of drafts

KEYS = {
    "model",
    "extrapolated_to_another_model",
    "text",
    "positions",
    "temperature",
    "law",
    "drafts",
    "largest_error_left_out",
    "plain_fits",
    "plain_ctx_size",
    "plain_kv_bits",
    "plain_tokens_per_second",
    "candidates",
    "best",
}


@pytest.fixture
def kept() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(demo.DRAFTS.read_text("utf-8"))
    return data


@pytest.mark.thorough
def test_each_kept_draft_is_predicted_by_the_others(edgedec: Edgedec, kept: dict[str, Any]) -> None:
    data: dict[str, Any] = edgedec("plan", "-m", "demo", "--advise-draft", "--json").json
    assert set(data) == KEYS
    assert [draft["parameters"] for draft in data["drafts"]] == [draft["parameters"] for draft in kept["drafts"]]
    errors = [draft["error_left_out"] for draft in data["drafts"]]
    assert len(errors) == 5
    assert data["largest_error_left_out"] == max(map(abs, errors)) <= 0.03
    assert data["extrapolated_to_another_model"] is True
    assert {one["layers"] for one in data["candidates"]} == {2}


@pytest.mark.thorough
def test_the_report_has_the_errors_the_chart_and_the_advice(edgedec: Edgedec, kept: dict[str, Any]) -> None:
    options = ("plan", "-m", "demo", "--advise-draft", "--device", "interpreter")
    data: dict[str, Any] = edgedec(*options, "--json").json
    text = edgedec(*options).stdout
    for draft in data["drafts"]:
        assert f"{draft['predicted']:5.3f}   {draft['error_left_out']:+.3f}" in text
    assert text.count("o") >= 5
    best = data["best"]
    assert f"--hidden-size {best['hidden_size']} --intermediate-size {best['intermediate_size']}" in text
    assert f"an estimated {best['speedup']:.2f} times the speed" in text
    assert "The law was fitted on drafts of an earlier embedded pair" in text


@pytest.mark.thorough
def test_another_model_is_told_what_the_law_was_fitted_on(edgedec: Edgedec) -> None:
    text = edgedec("plan", "-m", "demo-int8", "--advise-draft").stdout
    assert (
        "The law was fitted on drafts of an earlier embedded pair (7,867,776 parameters) and its text. For demo-int8\n"
        "it is only assumed" in text
    )
    data: dict[str, Any] = edgedec("plan", "-m", "demo-int8", "--advise-draft", "--json").json
    assert data["extrapolated_to_another_model"] is True


@pytest.mark.thorough
def test_a_budget_that_no_draft_fits_says_so(edgedec: Edgedec) -> None:
    outcome = edgedec("plan", "-m", "demo", "--advise-draft", "--memory-budget", "5MiB")
    assert outcome.code == 0
    assert "does not fit: " in outcome.stdout
    assert "advice: train no draft; of 13 sizes none fits the budget" in outcome.stdout


@pytest.mark.thorough
def test_the_law_is_fitted_to_drafts_of_one_s_own(edgedec: Edgedec, tmp_path: Path) -> None:
    drafts = []
    for width in WIDTHS:
        pair = make_pair(tmp_path / str(width), hidden_size=width)
        drafts += ["--draft", pair.small.path]
    options = ("plan", "-m", pair.large.path, "--advise-draft", *drafts)
    data: dict[str, Any] = edgedec(*options, "--json").json
    assert [draft["name"] for draft in data["drafts"]] == [str(path) for path in drafts[1::2]]
    assert data["text"] == "24 texts that the model wrote"
    assert data["positions"] == 24 * 96  # 96 positions of context, of which the prompt takes one
    assert data["extrapolated_to_another_model"] is False
    assert "The law was fitted on" not in edgedec(*options).stdout


def word_tokenizer() -> str:
    """Return a tokenizer with one token for each of the words w0, w1 and so on."""
    tokenizer = Tokenizer(models.WordLevel({f"w{number}": number for number in range(VOCAB)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer.to_str()


@pytest.mark.thorough
def test_drafts_of_one_s_own_are_measured_on_the_text(edgedec: Edgedec, tmp_path: Path) -> None:
    """Compare positions and acceptances with those of the lines of each of two files, and the two with each other."""
    pairs = [make_pair(tmp_path / str(width), tokenizer_json=word_tokenizer(), hidden_size=width) for width in WIDTHS]
    target, drafts, results = pairs[0].large, [pair.small for pair in pairs], []
    options = ["plan", "-m", target.path, "--advise-draft", "--json"]
    for draft in drafts:
        options += ["--draft", draft.path]
    for seed in (0, 1):
        rng = np.random.default_rng(seed)
        lines = [rng.integers(0, VOCAB, size).astype(np.int32) for size in (PAST, PAST + 1, 30, 0, 50 + seed)]
        file = tmp_path / f"{seed}.txt"
        file.write_text("".join(" ".join(f"w{number}" for number in line) + "\n" for line in lines))
        data: dict[str, Any] = edgedec(*options, "--text", file).json
        assert data["text"] == str(file)
        assert data["positions"] == 1 + (30 - PAST) + (50 + seed - PAST)
        texts = [WrittenText(ids=line, prompt=PAST) for line in lines if len(line) > PAST]
        table = measure_acceptance(target, drafts, texts, SamplingConfig(temperature=data["temperature"]))
        assert [draft["acceptance"] for draft in data["drafts"]] == [accepted.chosen for accepted in table.drafts]
        assert data["law"]["floor"] == table.floor.chosen
        results.append(data["drafts"])
    assert results[0] != results[1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("w1 w2 w3\n\nw4\n", f"the text has no line of more than {PAST} tokens; give a longer --text"),
        (None, "--text no.txt: there is no such file"),
    ],
)
def test_a_text_without_a_position_to_measure_is_refused(
    edgedec: Edgedec, tmp_path: Path, content: str | None, message: str
) -> None:
    pair, file = make_pair(tmp_path / "pair", tokenizer_json=word_tokenizer()), Path("no.txt")
    if content is not None:
        file.write_text(content)
    drafts = ["--draft", pair.small.path] * 3
    outcome = edgedec("plan", "-m", pair.large.path, "--advise-draft", *drafts, "--text", file)
    assert (outcome.code, outcome.stdout) == (2, "")
    assert message in outcome.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_the_law_is_drawn(edgedec: Edgedec, tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / f"law.{suffix}"
    assert edgedec("plan", "-m", "demo", "--advise-draft", "--plot", file).code == 0
    assert file.read_bytes().startswith(b"<?xml" if suffix == "svg" else b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--draft d", "--draft, --text and --plot are for --advise-draft; give it, or leave them out"),
        ("--plot law.svg", "--draft, --text and --plot are for --advise-draft"),
        (
            "--advise-draft --spec-type ngram",
            "leave out -md, --spec-type and --decoder; --draft gives drafts to measure",
        ),
        ("--advise-draft --decoder switch", "leave out -md, --spec-type and --decoder"),
        ("--advise-draft --text t.txt", "--text is the text on which the drafts of --draft are measured"),
        ("--advise-draft --draft demo-draft", "--draft must be given for at least 3 drafts of different sizes, not 1"),
        ("--advise-draft --plot law.gif", "--plot law.gif: must end in .png, .svg or .pdf"),
    ],
)
def test_options_without_a_meaning_are_refused(edgedec: Edgedec, options: str, message: str) -> None:
    outcome = edgedec("plan", "-m", "demo", *options.split())
    assert outcome.code == 2
    assert message in outcome.stderr


def test_the_chart_has_each_draft_at_its_place() -> None:
    law = DraftLaw(intercept=-13.0, slope=1.0, floor=0.05, ceiling=0.9, smallest=100_000, largest=1_000_000)
    drafts = [MeasuredDraft(name="", parameters=size, acceptance=law.acceptance(size)) for size in (100_000, 1_000_000)]
    lines = chart(drafts, law)
    rows = {line.index("o"): at for at, line in enumerate(lines[1:-2]) if "o" in line}
    (left, low), (right, high) = sorted(rows.items())
    assert left < right
    assert low > high  # the larger draft is accepted more, and stands higher
    assert any(line.lstrip(" 0.95").startswith("|---") for line in lines)
    assert lines[-1].split() == ["66,667", "1,500,000", "parameters"]
