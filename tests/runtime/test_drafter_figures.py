"""Test the figures of drafters that plans assume: what the file must have, and who reads it.

``tests/benchmarks/test_estimates.py`` measures some of them again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgedec import demo
from edgedec.bundle.bundle import Bundle
from edgedec.errors import EdgedecError
from edgedec.host.install_hint import install_again
from edgedec.plugins import names
from edgedec.runtime.planning import drafter_figures as module
from edgedec.runtime.planning.drafter_figures import FIGURES, UNMEASURED, drafter_figures, read_figures
from edgedec.runtime.planning.estimates import tokens_per_second
from edgedec.runtime.planning.planning import make_plan
from edgedec.runtime.planning.speculation import DRAFTERS, SpecConfig
from edgedec.runtime.run_settings import RunSettings

ITEMS = {"weights": 10_000_000}
GOOD = {"acceptance": {"story": 0.25, "code": 0.5}, "guess_microseconds": 20}


def file_of(folder: Path, drafters: Any, **others: Any) -> Path:
    path = folder / "figures.json"
    path.write_text(json.dumps({"measured": {}, "drafters": drafters, **others}), "utf-8")
    return path


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Put a file of the test in the place of the package's."""
    path = file_of(tmp_path, {"copy": GOOD})
    monkeypatch.setattr(module, "FIGURES", path)
    module._installed.cache_clear()
    yield path
    module._installed.cache_clear()


def test_the_file_has_every_drafter_that_makes_guesses_of_its_own() -> None:
    assert set(read_figures(FIGURES)) == set(names(DRAFTERS)) - {"auto", "grammar", "none"}


def test_the_best_kind_of_text_counts(installed: Path) -> None:
    figures = drafter_figures("copy")
    assert figures.acceptance == 0.5
    assert figures.guess_seconds == pytest.approx(20e-6)
    assert drafter_figures("a plug-in") == drafter_figures("grammar") == UNMEASURED


def test_estimates_read_the_file(installed: Path) -> None:
    def speed(nodes: int, drafter: str = "copy") -> float:
        return tokens_per_second(ITEMS, drafter=drafter, nodes=nodes, model=False, threads=1)

    plain, seconds = speed(1), 1 / speed(1)
    assert speed(2) == pytest.approx(1.5 / (1.13 * seconds + 20e-6))
    assert speed(2, "a plug-in") == pytest.approx(1.35 / (1.13 * seconds + 50e-6))
    file_of(installed.parent, {"copy": {"acceptance": {"story": 0.01}, "guess_microseconds": 20}})
    module._installed.cache_clear()
    assert speed(2) == plain


@pytest.mark.parametrize(
    ("drafters", "message"),
    [
        ({}, "its members must be measured and drafters"),
        ([], "its members must be measured and drafters"),
        ({"copy": {}}, "copy must have the members acceptance and guess_microseconds, not "),
        ({"copy": GOOD | {"more": 1}}, "copy must have the members .*, not acceptance, guess_microseconds, more"),
        ({"copy": GOOD | {"acceptance": {}}}, "copy has no acceptance"),
        ({"copy": GOOD | {"acceptance": {"story": 1.5}}}, "copy has the value 1.5 where 0 to 1 is expected"),
        ({"copy": GOOD | {"acceptance": {"story": "0.5"}}}, "copy has the value '0.5' where 0 to 1 is expected"),
        ({"copy": GOOD | {"acceptance": {"story": True}}}, "copy has the value True where"),
        ({"copy": GOOD | {"acceptance": {"story": float("nan")}}}, "copy has the value nan where"),
        ({"copy": GOOD | {"acceptance": [0.5]}}, "no attribute 'values'"),
        ({"copy": GOOD | {"guess_microseconds": -1}}, "copy has the value -1 where 0 to 1e"),
        ({"copy": 7}, "not iterable"),
    ],
)
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, drafters: Any, message: str) -> None:
    path = file_of(tmp_path, drafters)
    with pytest.raises(
        EdgedecError,
        match=f"^{path}: the figures of drafters cannot be read: .*{message}.*{re.escape(install_again())}$",
    ):
        read_figures(path)


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"drafters": {}}', '{"measured": {}, "drafters": 7}', "\0"])
def test_another_file_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "figures.json"
    path.write_text(text, "utf-8")
    with pytest.raises(
        EdgedecError, match=f"^{path}: the figures of drafters cannot be read: .*; {re.escape(install_again())}$"
    ):
        read_figures(path)
    with pytest.raises(EdgedecError, match="No such file"):
        read_figures(tmp_path / "none.json")


@pytest.mark.thorough
def test_only_a_plan_with_guesses_needs_the_file(installed: Path) -> None:
    installed.write_text("{", "utf-8")
    bundle = Bundle.open(demo.bundle_path(), weights=False)
    assert make_plan(bundle, RunSettings(threads=1)).plan.estimated_tokens_per_second > 0
    with pytest.raises(EdgedecError, match=r"figures\.json: the figures of drafters cannot be read"):
        make_plan(bundle, RunSettings(threads=1, spec=SpecConfig(drafter="copy")))
