"""Test ``edgedec build-bitstream --explore``: its output, its files, and its refusals."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from edgedec.host.install_hint import install_extra
from tests.edgedec.cli.conftest import Edgedec
from tests.runtime.accelerator.support import make_board_bundle

pytest.importorskip("amaranth", reason="the hardware generator is not installed")

FEW = "board,tile_rows=40,prefetch_beats=256,softmax_lanes=1,beat_bytes=16"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("a model")
    return make_board_bundle.write_source(folder / "source", "native", seed=0, ids=40, template=None).path


def words(source: Path, *extra: str | Path, board: str = "kv260", configuration: str = FEW) -> list[str | Path]:
    arguments: list[str | Path] = ["-m", source, "--board", board, "--configuration", configuration, "--workers", "1"]
    return ["build-bitstream", "--explore", *arguments, *extra]


def test_estimates_are_shown_in_two_tables(edgedec: Edgedec, source: Path) -> None:
    outcome = edgedec(*words(source))
    assert (outcome.code, outcome.stderr) == (0, "")
    lines = outcome.stdout.splitlines()
    assert (
        lines[0] == "AMD Kria KV260: 12 accelerators estimated, 12 fit; at 250 MHz, memory with 15.97 GB/s (measured)"
    )
    heads = [at for at, line in enumerate(lines) if line.startswith("Pareto front of estimated tokens/s and LUTs, ")]
    assert [lines[at].rpartition(", ")[2] for at in heads] == [
        "one token in a pass:",
        "a token for each slot in a pass:",
    ]
    assert "tokens/s @128  tokens/s @1,016  --configuration" in lines[heads[0] + 1]
    assert "All figures are estimates for the accelerator alone." in lines[-1]
    tables = lines[heads[0] : heads[1]], lines[heads[1] : -3]
    assert [sum(line.startswith("*") for line in table) for table in tables] == [1, 1]
    assert [sum(line.split()[0] in ("b", "*b") for line in table if line) for table in tables] == [1, 1]
    assert lines[-3] == "* on the front: the smallest accelerator whose speed is within 1 % of the fastest one's"
    assert lines[-2].startswith("b choice of --configuration board")
    rows = lines[heads[0] + 2 : heads[1] - 1]
    luts = [int(row.lstrip("*b ").split()[0].replace(",", "")) for row in rows]
    assert luts == sorted(luts)
    assert not any(Path().iterdir())


def test_a_board_without_a_choice_of_its_own_is_reported(edgedec: Edgedec, source: Path) -> None:
    wide = edgedec(*words(source, configuration="board,tile_rows=40,prefetch_beats=256,beat_bytes=64,ports=2,slots=1"))
    assert (wide.code, wide.stdout) == (2, "")
    assert "kv260" in wide.stderr
    other = edgedec(*words(source, configuration="board,tile_rows=40,prefetch_beats=256,ports=4,slots=1"))
    assert other.code == 0
    assert "--configuration board" in other.stdout.splitlines()[-2]


def test_json_has_every_point(edgedec: Edgedec, source: Path) -> None:
    data: dict[str, Any] = edgedec(*words(source, "--json")).json
    assert (data["format"], data["kind"], data["board"]["name"]) == ("edgedec-exploration", "estimated", "kv260")
    assert len(data["points"]) == 12
    for front in ("token", "pass"):
        best = [data["points"][number] for number in data["fronts"][front]]
        assert [point["resources"]["lut"] for point in best] == sorted(p["resources"]["lut"] for p in best)
        assert data["best"][front] in data["fronts"][front], "the star is never dominated"
    point = data["points"][data["chosen"]]
    assert point["text"].startswith("board,beat_bytes=16,ports=")
    assert {entry["committed"] for entry in point["passes"]} == set(data["committed"]) == {128, 1016}


@pytest.mark.thorough
def test_a_printed_configuration_can_be_built(edgedec: Edgedec, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.boards.flows.vivado.support import fake_vivado

    fake_vivado.fake_core(monkeypatch)
    data: dict[str, Any] = edgedec(*words(source, "--json")).json
    point = data["points"][data["fronts"]["token"][0]]
    outcome = edgedec(
        "build-bitstream", "-m", source, "--board", "kv260", "-o", "b", "--configuration", point["text"],
        "--no-build", "--json",
    )  # fmt: skip
    assert outcome.code == 0
    report: dict[str, Any] = outcome.json
    assert report["configuration"] == point["configuration"]["hash"]
    assert {name: report["resources"]["estimated"][name] for name in point["resources"]} == point["resources"]
    again = edgedec(*words(source, "-o", "b"))
    assert again.code == 2
    assert "-o b: contains a build; choose another folder" in again.stderr


@pytest.mark.thorough
def test_files_hold_the_same_points(edgedec: Edgedec, source: Path) -> None:
    pytest.importorskip("matplotlib")
    outcome = edgedec(*words(source, "-o", "an exploration", "--json"))
    assert (outcome.code, outcome.stderr) == (0, "written to an exploration\n")
    folder = Path("an exploration")
    assert sorted(file.name for file in folder.iterdir()) == ["explore.csv", "explore.json", "explore.svg"]
    assert json.loads((folder / "explore.json").read_text("utf-8")) == outcome.json
    with (folder / "explore.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    data: dict[str, Any] = outcome.json
    assert [row["text"] for row in rows] == [point["text"] for point in data["points"]]
    assert [number for number, row in enumerate(rows) if row["token_front"] == "1"] == sorted(data["fronts"]["token"])
    assert [row["chosen"] for row in rows].index("1") == data["chosen"]
    for row, point in zip(rows, data["points"], strict=True):
        assert int(row["lut"]) == point["resources"]["lut"]
        first = point["passes"][0]["tokens_per_second"]
        assert float(row["token_tokens_per_second_at_128"]) == pytest.approx(first, rel=1e-5)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert edgedec(*words(source, "-o", "an exploration")).code == 0
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_without_matplotlib_the_other_files_are_written(
    edgedec: Edgedec, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    Path("x").symlink_to("made then")
    outcome = edgedec(*words(source, "-o", "x"))
    assert outcome.code == 0
    assert Path("x").is_symlink()
    assert f"explore.svg was not drawn: the picture needs matplotlib; run: {install_extra('plot')}" in outcome.stderr
    assert sorted(file.name for file in Path("x").iterdir()) == ["explore.csv", "explore.json"]


@pytest.mark.thorough
def test_a_model_that_does_not_fit_the_board_is_refused(edgedec: Edgedec, source: Path) -> None:
    outcome = edgedec(*words(source, board="pynq-z2", configuration="board,context=65536,beat_bytes=16,slots=8"))
    assert (outcome.code, outcome.stdout) == (1, "")
    assert "edgedec: the model does not fit pynq-z2: with slots=8" in outcome.stderr
    assert " lut, of 53200 at most 39900 can be used" in outcome.stderr


@pytest.mark.thorough(sample=8)
@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (
            ["--configuration", "small"],
            "--explore varies the board's configuration; write --configuration board, not small",
        ),
        (["--configuration", "board,slots=9"], "slots must be 1 to 8, not 9"),
        (["--pool", "cloud"], "no 'cloud' among the worker pools; known: local, ray"),
        (["--workers", "-1"], "--workers"),
        (["--no-build"], "--explore builds nothing, and has no use for --no-build: leave it out"),
        (["--load"], "--explore builds nothing, and has no use for --load: leave it out"),
        (["--seed", "2"], "--explore builds nothing, and has no use for --seed: leave it out"),
        (["--seed", "1", "--synthesize"], "has no use for --seed, --synthesize: leave them out"),
        (["-o", "a file"], "-o a file: is a file; name a folder"),
        (["-o", "a file/below"], "-o a file/below: a file cannot be written"),
        (["-o", "a loop"], "-o a loop: is a link that leads back to itself; choose another name or remove it"),
        (["--board", "kv261"], "no board 'kv261'"),
    ],
)
def test_wrong_requests_are_refused(edgedec: Edgedec, source: Path, extra: list[str], message: str) -> None:
    Path("a file").touch()
    Path("a loop").symlink_to("a loop")
    outcome = edgedec(*words(source), *extra)
    assert outcome.code == 2
    assert outcome.stdout == ""
    assert message in outcome.stderr


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("by", ["file", "environment"])
def test_settings_for_builds_are_ignored(
    edgedec: Edgedec, source: Path, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that settings from outside of the call are ignored, because a call cannot drop them, but that flags count."""
    monkeypatch.setenv("PATH", "")  # no loader
    table = {"seed": "3", "load": "true", "no-build": "true", "synthesize": "true"}
    environment = {f"EDGEDEC_BUILD_BITSTREAM_{key.replace('-', '_').upper()}": text for key, text in table.items()}
    if by == "file":
        environment = {}
        Path("edgedec.toml").write_text("\n".join(["[build-bitstream]", *(f"{key} = {table[key]}" for key in table)]))
    outcome = edgedec(*words(source), env=environment)
    assert (outcome.code, outcome.stderr) == (0, "")
    outcome = edgedec(*words(source), "--seed", "3", env=environment)
    assert (outcome.code, "has no use for --seed: leave it out" in outcome.stderr) == (2, True)


@pytest.mark.thorough
def test_settings_for_explorations_are_ignored_by_builds(
    edgedec: Edgedec, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.boards.flows.vivado.support import fake_vivado

    fake_vivado.fake_core(monkeypatch)
    Path("edgedec.toml").write_text('[build-bitstream]\npool = "ray"\nworkers = 2\n')
    arguments = ["build-bitstream", "-m", source, "--board", "kv260", "--configuration", FEW + ",ports=4,slots=1"]
    assert edgedec(*arguments, "-o", "x", "--no-build").code == 0
    outcome = edgedec(*arguments, "-o", "x", "--no-build", "--workers", "2")
    assert (outcome.code, "--pool and --workers are for --explore" in outcome.stderr) == (2, True)


def test_a_build_needs_a_folder_and_takes_no_workers(edgedec: Edgedec, source: Path) -> None:
    arguments = ["build-bitstream", "-m", source, "--board", "kv260"]
    outcome = edgedec(*arguments)
    assert (outcome.code, outcome.stderr.count("\n")) == (2, 1)
    assert "-o is missing; name a folder to build in" in outcome.stderr
    outcome = edgedec(*arguments, "-o", "x", "--workers", "2")
    assert outcome.code == 2
    assert "--pool and --workers are for --explore" in outcome.stderr


def test_without_ray_its_package_is_named(edgedec: Edgedec, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    outcome = edgedec(*words(source), "--pool", "ray")
    assert (outcome.code, outcome.stdout) == (3, "")
    assert install_extra("ray") in outcome.stderr
