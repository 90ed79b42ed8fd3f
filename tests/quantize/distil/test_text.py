"""Test token streams from files and from the teacher itself."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

pytest.importorskip("torch")

import torch

from edgedec.errors import BundleError, EdgedecError, UsageError
from edgedec.quantize.distil import text as text_module
from edgedec.quantize.distil.objective import text_loss
from edgedec.quantize.distil.text import Special, read_texts, sample_text, split
from edgedec.quantize.distil.torch_graph import TorchGraph
from tests.edgedec.cli.support.make_known_model import BOS, EOS, byte_tokenizer
from tests.quantize.distil.support.make_teachers import CPU, model

pytestmark = pytest.mark.compare

SPECIAL = Special(bos=BOS, eos=(EOS,), limit=258)


def ids_of(text: str) -> list[int]:
    return list(byte_tokenizer().encode(text, add_special_tokens=False).ids)


def read(*files: Path, special: Special = SPECIAL) -> list[int]:
    return [int(token) for token in read_texts(files, byte_tokenizer(), special)]


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_text_file_is_read_as_one_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_module, "_LINES_AT_ONCE", 2)
    file = tmp_path / "a.txt"
    file.write_text("one\ntwo\n\nthree\nfour")
    assert read(file, file) == 2 * [BOS, *ids_of("one\ntwo\n\nthree\nfour"), EOS]


def test_each_line_of_jsonl_is_a_document(tmp_path: Path) -> None:
    """Check that a line ends at a line feed only, because JSON strings may hold other line separators."""
    file = tmp_path / "a.jsonl"
    texts = ["one", "two\u2028three\x85four\n", ""]
    file.write_text("\n\n".join(json.dumps({"text": text, "id": 7}, ensure_ascii=False) for text in texts) + "\n")
    assert read(file) == [token for text in texts for token in (BOS, *ids_of(text), EOS)]


def test_a_begin_token_that_also_ends_is_written_once(tmp_path: Path) -> None:
    """Check this for llama2.c, where generation ends at BOS as well."""
    (tmp_path / "a").write_text("x")
    assert read(tmp_path / "a", special=Special(bos=BOS, eos=(EOS, BOS), limit=258)) == [BOS, *ids_of("x"), EOS]
    assert read(tmp_path / "a", special=Special(bos=BOS, eos=(BOS,), limit=258)) == [BOS, *ids_of("x")]
    assert read(tmp_path / "a", special=Special(bos=None, eos=(), limit=258)) == ids_of("x")


@pytest.mark.parametrize(("limit", "dtype"), [(258, np.uint16), (1 << 16, np.uint16), ((1 << 16) + 1, np.uint32)])
def test_ids_are_stored_in_two_bytes_if_they_fit(tmp_path: Path, limit: int, dtype: Any) -> None:
    (tmp_path / "a").write_text("x")
    special = Special(bos=limit - 1, eos=(), limit=limit)
    ids = read_texts([tmp_path / "a"], byte_tokenizer(), special)
    assert (ids.dtype, int(ids[0])) == (dtype, limit - 1)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing", None, "there is no such file; check the spelling"),
        ("empty", b"", "the file is empty"),
        ("blank.jsonl", b" \n\n", "the file is empty"),
        ("latin", b"caf\xe9 noir", "not UTF-8 at byte 3; save the text as UTF-8"),
        ("a.jsonl", b'{"text": "a"}\nnonsense\n', 'line 2 must be a JSON object with a string under the key "text"'),
        ("b.jsonl", b'{"txt": "a"}', "line 1 must be"),
        ("c.jsonl", b'["a"]', "line 1 must be"),
        ("d.jsonl", b'{"text": null}', "line 1 must be"),
        ("e.jsonl", b'{"text": 7}', "line 1 must be"),
        ("f.jsonl", b'{"text": "\\ud800"}', "line 1 must be"),
        ("g.jsonl", b"[" * 100_000, "line 1 must be"),
    ],
)
def test_unreadable_files_are_refused(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    file = tmp_path / name
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        read(file)
    assert f"--text {file}: {message}" in str(caught.value)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        read(tmp_path)


def test_ids_outside_of_the_vocabulary_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("~")
    with pytest.raises(BundleError, match=r"gives id \d+, the model has 10; it belongs to another model"):
        read_texts([tmp_path / "a"], byte_tokenizer(), Special(bos=None, eos=(), limit=10))


def test_a_text_without_tokens_is_refused(tmp_path: Path) -> None:
    """Tokenize spaces with a tokenizer that drops them: there are no ids, and max() must not fail."""
    from tokenizers import models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    (tmp_path / "a.jsonl").write_text('{"text": "  "}\n{"text": "a a"}')
    assert read_texts([tmp_path / "a.jsonl"], tokenizer, Special(bos=None, eos=(), limit=1)).tolist() == [0, 0]


# --- held out ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "minimum", "held_out"), [(100, 10, 10), (10_000, 10, 200), (20, 10, 10), (10_000_000, 10, 65_536)]
)
def test_the_end_is_held_out(count: int, minimum: int, held_out: int) -> None:
    ids = np.zeros(count, np.uint16)
    train, valid = split(ids, minimum)
    assert (len(train), len(valid)) == (count - held_out, held_out)


def test_a_text_too_short_to_split_is_refused() -> None:
    with pytest.raises(
        UsageError, match="the text has 19 tokens; training and validation need 10 each: give more text"
    ):
        split(np.zeros(19, np.uint16), 10)


# --- text of the teacher ----------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _few_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_module, "_SEQUENCES", 8)


def sample(folder: Path, *, teacher: TorchGraph | None = None, special: Special = SPECIAL, **changes: Any) -> Any:
    arguments: dict[str, Any] = {"tokens": 200, "length": 13, "place": CPU}
    return sample_text(teacher or model(), special, folder, **arguments | changes)


@pytest.mark.thorough
def test_sampled_text_depends_on_the_seed_and_has_whole_parts(tmp_path: Path) -> None:
    first = sample(tmp_path / "one", seed=1)
    assert len(first) == 2 * 8 * 13, "as many parts as 200 tokens need"
    assert (first.reshape(-1, 13)[:, 0] == BOS).all()
    assert first.max() < 258, "rows past the tokenizer's ids are no tokens"
    assert np.array_equal(first, sample(tmp_path / "two", seed=1))
    assert not np.array_equal(first, sample(tmp_path / "three", seed=2))
    assert not np.array_equal(first[: 8 * 13], first[8 * 13 :]), "a seed for each part"


@pytest.mark.thorough
def test_sampling_continues_after_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = sample(tmp_path / "whole", tokens=400)

    def interrupted(label: str, done: int, total: int) -> None:
        assert total == 4 * 8 * 13
        if done > 2.5 * 8 * 13:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sample(tmp_path / "killed", tokens=400, progress=interrupted)
    parts = sorted((tmp_path / "killed").iterdir())
    assert [part.name for part in parts] == ["00000.npy", "00001.npy"]
    times = [part.stat().st_mtime_ns for part in parts]
    assert np.array_equal(sample(tmp_path / "killed", tokens=400), whole)
    assert [part.stat().st_mtime_ns for part in parts] == times, "what was there was not sampled again"


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("damage", [b"", b"not numpy", None])
def test_a_damaged_part_is_sampled_again(tmp_path: Path, damage: bytes | None) -> None:
    whole = sample(tmp_path)
    if damage is None:
        np.save(tmp_path / "00001.npy", np.full(8 * 13, 999, np.uint16))
    else:
        (tmp_path / "00001.npy").write_bytes(damage)
    assert np.array_equal(sample(tmp_path), whole)


@pytest.mark.thorough
def test_processes_share_the_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = sample(tmp_path / "alone", tokens=400)
    folder = tmp_path / "shared"
    place = replace(CPU, world=2)
    monkeypatch.setattr(type(place), "wait", lambda self: None)
    with pytest.raises(FileNotFoundError):
        sample(folder, tokens=400, place=place)
    assert sorted(path.name for path in folder.iterdir()) == ["00000.npy", "00002.npy"]
    assert np.array_equal(sample(folder, tokens=400, place=replace(place, rank=1)), whole)


@pytest.mark.thorough
def test_a_new_document_follows_an_end_token(tmp_path: Path) -> None:
    """Sample a teacher that always ends: its text is BOS EOS BOS EOS, and BOS alone if BOS ends, too."""
    teacher = model(tie_word_embeddings=False)
    with torch.no_grad():
        teacher.tensors["lm_head.weight"].zero_()
        teacher.tensors["model.embed_tokens.weight"].fill_(1.0)
        teacher.tensors["lm_head.weight"][EOS] = 100.0
        for name in teacher.ternary_names:
            teacher.tensors[name].zero_()
        teacher.tensors["model.norm.weight"].fill_(1.0)
    rows = sample(tmp_path / "a", teacher=teacher).reshape(-1, 13)
    assert (rows == ([BOS, EOS] * 7)[:13]).all()
    with torch.no_grad():
        teacher.tensors["lm_head.weight"][BOS] = 200.0
    special = Special(bos=BOS, eos=(EOS, BOS), limit=258)
    assert (sample(tmp_path / "b", teacher=teacher, special=special) == BOS).all()


@pytest.mark.thorough
def test_without_a_begin_token_sequences_begin_with_any_token(tmp_path: Path) -> None:
    rows = sample(tmp_path, special=Special(bos=None, eos=(EOS,), limit=258)).reshape(-1, 13)
    assert len(set(rows[:, 0].tolist())) > 4


@pytest.mark.thorough
def test_the_teacher_s_loss_on_its_own_text_is_its_entropy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check this over 4,000 draws, which come within 5 standard errors."""
    monkeypatch.setattr(text_module, "_SEQUENCES", 64)
    monkeypatch.setattr(Special, "ends", ())  # no jumps that the teacher did not draw
    teacher = model()
    limit = 264
    special = Special(bos=BOS, eos=(), limit=limit)
    rows = torch.from_numpy(
        sample(tmp_path, teacher=teacher, special=special, tokens=64 * 64, length=33).reshape(-1, 33).astype(np.int64)
    )
    with torch.no_grad():
        log_p = teacher(rows[:, :-1])[0].log_softmax(-1)
    entropy = -(log_p.exp() * log_p).sum(-1)
    spread = (log_p.exp() * (log_p + entropy[..., None]).square()).sum(-1)
    error = float(spread.sum().sqrt()) / entropy.numel()
    assert abs(text_loss(teacher, rows) - float(entropy.mean())) < 5 * error
    cold = sample(tmp_path / "cold", teacher=teacher, special=special, tokens=64, length=33, temperature=0.3)
    sharp = torch.from_numpy(cold.reshape(-1, 33).astype(np.int64))
    assert text_loss(teacher, sharp) < float(entropy.mean()) - 20 * error


def test_a_part_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EdgedecError, match=r"cannot write .*file/00000\.npy"):
        sample(tmp_path / "file")
