"""Refuse draft models whose borrowed tensors are not those of their target, by name and before anything is planned."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgedec.borrowing_bundle import write_borrowing
from edgedec.bundle.bundle import Bundle
from edgedec.bundle.lending import lend_tensors, tensor_sha256
from edgedec.calibrated_bundle import weights_sha256, write_calibrated
from edgedec.errors import BundleError, EdgedecError, UsageError
from edgedec.kv.policy import read_policy
from edgedec.runtime.planning import planning
from edgedec.runtime.planning.planning import make_plan
from edgedec.runtime.planning.speculation import SpecConfig
from edgedec.runtime.run_settings import RunSettings
from edgedec.runtime.session.session import Session
from tests.support.make_borrowing import EMBEDDING, HEAD, SHAPE, Pair, forge, write_model, write_pair

Change = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return write_pair(tmp_path_factory.mktemp("borrowing"))


@pytest.fixture
def draft(sound: Pair, tmp_path: Path) -> Path:
    """Return a copy of the borrowing draft, to forge."""
    return Path(shutil.copytree(sound.borrowing, tmp_path / "draft"))


def refuse(target: Path, draft: Path, message: str, error: type[EdgedecError] = UsageError) -> None:
    """Check that no plan is made and no session opened, and that a planner is not even asked."""
    spec = SpecConfig(drafter="model", draft=draft)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "run_choices", lambda *_: pytest.fail("it was planned"))
        with pytest.raises(error, match=message):
            make_plan(Bundle.open(target), RunSettings(spec=spec))
        with pytest.raises(error, match=message):
            Session.open(target, spec=spec)


def borrowed(key: str, value: Any, name: str = HEAD) -> Change:
    def change(content: dict[str, Any]) -> None:
        content["borrows"]["tensors"][name][key] = value

    return change


def put(*keys: str, value: Any) -> Change:
    def change(content: dict[str, Any]) -> None:
        for key in keys[:-1]:
            content = content[key]
        content[keys[-1]] = value

    return change


def both(content: dict[str, Any]) -> None:
    content["borrows"]["tensors"]["model.norm.weight"] = content["borrows"]["tensors"][HEAD]


LIES: dict[str, tuple[Change, str]] = {
    "a hash that lies": (
        borrowed("sha256", "0" * 64),
        f"{HEAD}, which is its target's {HEAD}, and that of .* has other bytes",
    ),
    "a tensor that the target lacks": (
        borrowed("tensor", "lm_tail.weight"),
        "lm_tail.weight, and .* has no such tensor",
    ),
    "another tensor of the shape": (
        borrowed("tensor", EMBEDDING),
        f"its target's {EMBEDDING}, and that of .* has other bytes",
    ),
    "another shape": (borrowed("shape", [128, 512]), "has another shape or scheme"),
    "another scheme": (borrowed("scheme", {"kind": "int8"}), "has another shape or scheme"),
}
MALFORMED: dict[str, tuple[Change, str]] = {
    "no object": (put("borrows", value=[]), r"borrows: must have target and tensors, not \[\]"),
    "no tensors": (put("borrows", "tensors", value={}), "tensors must be an object with at least one tensor"),
    "more keys": (put("borrows", "device", value="cpu"), "borrows: must have target and tensors"),
    "no target": (put("borrows", "target", value="demo"), "target must have a name and sha256, not 'demo'"),
    "a target without a hash": (
        put("borrows", "target", "sha256", value="x"),
        "sha256 must be 64 hexadecimal digits, not 'x'",
    ),
    "an entry as text": (
        put("borrows", "tensors", HEAD, value=HEAD),
        f"tensor {HEAD}: must have tensor, shape, scheme and sha256",
    ),
    "a name as a number": (borrowed("tensor", 1), f"tensor {HEAD}: its name in the target must be a text, not 1"),
    "a hash as a number": (borrowed("sha256", 0), f"tensor {HEAD}: sha256 must be 64 hexadecimal digits, not 0"),
    "an impossible shape": (borrowed("shape", [1 << 60, 1]), f"tensor {HEAD}: impossible shape"),
    "an unknown scheme": (borrowed("scheme", {"kind": "int2"}), f"tensor {HEAD}: scheme must be one of"),
    "stored as well": (both, "tensor model.norm.weight is stored in the bundle as well"),
    "not required": (put("requires", value=[]), "borrows: requires does not list it"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_draft_of_other_tensors_is_refused_before_it_is_planned(sound: Pair, draft: Path, lie: str) -> None:
    change, message = LIES[lie]
    refuse(sound.target, forge(draft, change), message)


@pytest.mark.parametrize("fault", MALFORMED)
def test_a_malformed_entry_is_refused_by_name(draft: Path, fault: str) -> None:
    change, message = MALFORMED[fault]
    with pytest.raises(BundleError, match=message):
        Bundle.open(forge(draft, change), borrows=True)


def test_an_older_reader_refuses_the_feature_by_name(sound: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgedec.bundle.manifest.FEATURES", frozenset({"int4"}))
    with pytest.raises(EdgedecError, match=r"requires \['borrows'\], which edgedec .* does not know"):
        Bundle.open(sound.borrowing, borrows=True)


def test_alone_it_is_refused_with_the_next_step(sound: Pair) -> None:
    next_step = f"-m TARGET --spec-type model -md {re.escape(str(sound.borrowing))}"
    with pytest.raises(UsageError, match=f"borrows {EMBEDDING} of its target target, .*{next_step}"):
        Session.open(sound.borrowing)


def test_another_target_is_refused_with_both_names(sound: Pair, tmp_path: Path) -> None:
    write_model(tmp_path / "other", "int8", {**SHAPE, "num_hidden_layers": 2}, seed=5)
    refuse(
        tmp_path / "other",
        sound.borrowing,
        f"borrows {EMBEDDING}.* that of .*other has other bytes; .* made for target",
    )


def test_a_target_that_borrows_is_refused(sound: Pair) -> None:
    """Check both cycles: of a bundle with itself, and of two; a target is opened as a bundle that has all of its tensors."""
    for draft in (sound.borrowing, sound.whole):
        with pytest.raises(UsageError, match="so it is a draft model of that target only"):
            Session.open(sound.borrowing, spec=SpecConfig(drafter="model", draft=draft))


def test_a_bundle_does_not_borrow_of_a_draft_or_of_itself(sound: Pair, tmp_path: Path) -> None:
    whole, target = Bundle.open(sound.whole), Bundle.open(sound.target)
    with pytest.raises(UsageError, match="are one bundle, which cannot be its own target"):
        write_borrowing(target, target, tmp_path / "out")
    with pytest.raises(UsageError, match="is the target, whose tensors would be gone"):
        write_borrowing(whole, target, sound.target)
    write_model(tmp_path / "other", "int8", {**SHAPE, "num_hidden_layers": 1}, seed=7)
    with pytest.raises(UsageError, match=r"no tensor of .*other has the shape, scheme and bytes of one of .*target"):
        write_borrowing(Bundle.open(tmp_path / "other"), target, tmp_path / "out")
    stranger = replace(whole, manifest=replace(whole.manifest, tokenizer_hash="f" * 64))
    with pytest.raises(
        UsageError, match=r"has the tokenizer ffffffffffff, and .* serves targets of its own tokenizer only"
    ):
        write_borrowing(stranger, target, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_another_vocabulary_is_refused_as_that(sound: Pair, draft: Path) -> None:
    forge(draft, put("tokenizer_identity", value="e" * 64))
    refuse(sound.target, draft, "has the tokenizer eeeeeeeeeeee")


def test_a_target_that_changes_after_its_opening_is_not_lent(sound: Pair, tmp_path: Path) -> None:
    """Check that the hash is of the file's bytes and not of what the target's manifest says."""
    target = Bundle.open(shutil.copytree(sound.target, tmp_path / "target"))
    with target.weights_file.open("r+b") as file:
        file.seek(target.tensors[HEAD].offsets["codes"])
        file.write(b"\1\2\3\4")
    with pytest.raises(UsageError, match=f"borrows {HEAD}.* has other bytes"):
        lend_tensors(Bundle.open(sound.borrowing, borrows=True), target)


@pytest.mark.parametrize("kind", ["int8", "planes2", "native", "int4_offset", "float"])
def test_the_tensors_are_the_whole_draft_s(tmp_path: Path, kind: str) -> None:
    pair = write_pair(tmp_path, kind)
    whole, draft = Bundle.open(pair.whole), pair.draft()
    assert set(draft.borrowed) == {EMBEDDING, HEAD}
    assert draft.weights_file.stat().st_size < whole.weights_file.stat().st_size - whole.tensors[HEAD].nbytes
    assert set(draft.tensors) == set(whole.tensors)
    for name, tensor in whole.tensors.items():
        assert (draft.tensors[name].shape, draft.tensors[name].scheme) == (tensor.shape, tensor.scheme)
        for part in tensor.scheme.parts(tensor.shape):
            assert draft.array(name, part).tobytes() == whole.array(name, part).tobytes()
            assert draft.copied(name, part).tobytes() == whole.copied(name, part).tobytes()
        assert (draft.weight(name).dense() == whole.weight(name).dense()).all()
        assert tensor_sha256(draft, name) == tensor_sha256(whole, name)


def test_a_whole_draft_is_lent_nothing(sound: Pair) -> None:
    whole = Bundle.open(sound.whole)
    assert lend_tensors(whole, Bundle.open(sound.target)) is whole


def test_the_model_card_says_what_the_bundle_is(sound: Pair, tmp_path: Path) -> None:
    whole = Path(shutil.copytree(sound.whole, tmp_path / "whole"))
    card = b'---\nlicense: "mit"\n---\n# a model\n'
    (whole / "README.md").write_bytes(card)
    entry = {"bytes": len(card), "sha256": hashlib.sha256(card).hexdigest()}
    forge(whole, put("files", "README.md", value=entry))
    write_borrowing(Bundle.open(whole), Bundle.open(sound.target), tmp_path / "out")
    Bundle.open(tmp_path / "out", borrows=True)
    text = (tmp_path / "out" / "README.md").read_text("utf-8")
    assert text.startswith(
        '---\nlicense: "mit"\n---\nThis bundle is a draft model of target without the tensors that are'
    )
    assert text.endswith("all of its tensors.\n\n# a model\n")


def test_a_calibrated_draft_keeps_its_policy(sound: Pair, tmp_path: Path) -> None:
    """Check that the policy names the new weights file, which has the same weights but borrowed ones."""
    whole = Bundle.open(sound.whole)
    policy = read_policy(
        {
            "kv_policy": {
                "kind": "duo",
                "sinks": 1,
                "window": 8,
                "streaming": {"layers.0.kv": [0]},
                "weights_sha256": weights_sha256(whole),
            }
        }
    )
    assert policy is not None
    write_calibrated(whole, tmp_path / "duo", policy)
    write_borrowing(Bundle.open(tmp_path / "duo"), Bundle.open(sound.target), tmp_path / "out")
    draft = Bundle.open(tmp_path / "out", borrows=True)
    kept = read_policy(draft.config)
    assert kept is not None
    assert kept.weights_sha256 == weights_sha256(draft) != policy.weights_sha256
