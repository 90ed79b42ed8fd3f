"""Test ``edgedec borrow``, and what ``inspect`` and ``list`` say of its bundles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgedec.bundle.bundle import Bundle
from tests.edgedec.cli.conftest import Edgedec
from tests.support.make_borrowing import EMBEDDING, HEAD, Pair, write_pair


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return write_pair(tmp_path_factory.mktemp("pair"))


def test_it_writes_the_smaller_bundle_and_says_what_is_borrowed(edgedec: Edgedec, pair: Pair) -> None:
    outcome = edgedec("borrow", pair.whole, "--target", pair.target, "-o", "small")
    assert outcome.code == 0
    for part in (EMBEDDING, HEAD, "small", "which lends 2 tensors", " before"):
        assert part in outcome.stdout
    data: dict[str, Any] = edgedec("borrow", pair.whole, "--target", pair.target, "-o", "small", "--json").json
    assert set(data) == {"output", "target", "borrows", "weight_bytes", "whole_weight_bytes"}
    written = Bundle.open("small", borrows=True)
    assert (
        data["weight_bytes"]
        == written.weight_bytes
        < data["whole_weight_bytes"]
        == Bundle.open(pair.whole).weight_bytes
    )
    assert data["borrows"] == {name: one.to_json() for name, one in written.manifest.borrows.tensors.items()}  # type: ignore[union-attr]


def test_inspect_says_of_which_target(edgedec: Edgedec, pair: Pair) -> None:
    text = edgedec("inspect", pair.borrowing).stdout
    data: dict[str, Any] = edgedec("inspect", pair.borrowing, "--json").json
    target = Bundle.open(pair.target)
    assert f"target, sha256 {target.sha256}" in text
    assert [line.split() for line in text.splitlines() if line.startswith("borrows")] == [
        ["borrows", EMBEDDING],
        ["borrows", HEAD],
    ]
    assert data["borrows"]["target"] == {"name": "target", "sha256": target.sha256}
    assert edgedec("inspect", pair.target, "--json").json["borrows"] is None


def test_list_has_no_fault_to_find_with_it(edgedec: Edgedec, pair: Pair) -> None:
    data: dict[str, Any] = edgedec("list", "--folder", pair.borrowing, "--json").json
    (listed,) = data["bundles"]
    assert (listed["problem"], listed["method"]) == (None, "int8")


@pytest.mark.parametrize(
    "words",
    ["generate -m NAME -p hi", "plan -m NAME", "export NAME -o out", "eval -m NAME --text text", "bench -m NAME"],
)
def test_alone_it_is_refused_by_every_command(edgedec: Edgedec, pair: Pair, words: str) -> None:
    Path("text").write_text("some text")
    outcome = edgedec(*(str(pair.borrowing) if word == "NAME" else word for word in words.split()))
    assert outcome.code == 2
    assert f"{pair.borrowing}: borrows {EMBEDDING} of its target target, so it is a draft model" in outcome.stderr


def test_the_wrong_target_is_refused(edgedec: Edgedec, pair: Pair, bundle: Path) -> None:
    outcome = edgedec("borrow", pair.whole, "--target", bundle, "-o", "small")
    assert outcome.code == 2
    assert "give another --target" in outcome.stderr or "no tensor of" in outcome.stderr
    assert not Path("small").exists()
