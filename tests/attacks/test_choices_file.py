"""Refuse misleading question files, with a message that names file, line, what is wrong and what is right."""

from __future__ import annotations

import json
import re
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from edgedec.errors import UsageError
from edgedec.runtime.measure.choices import MAX_LINE_BYTES, read_items

SOUND: dict[str, Any] = {"question": "2 + 2 =", "choices": [" 4", " 5"], "answer": 0}


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in SOUND.items() if name != key}


OBJECTS = {
    "no object": ([SOUND], "must be one JSON object, not"),
    "a number": (1, "must be one JSON object, not 1"),
    "null": (None, "must be one JSON object, not None"),
    "unknown key": (SOUND | {"anwser": 0}, "unknown key 'anwser'; known: question, choices, answer, id, category"),
    "a key of the reader's own": (SOUND | {"where": "elsewhere"}, "unknown key 'where'"),
    "a long unknown key": (SOUND | {"k" * 10_000: 0}, "unknown key 'kkkkkkkkkkkk"),
    "no question": (without("question"), "has no 'question'; needed: question, choices, answer"),
    "no choices": (without("choices"), "has no 'choices'"),
    "no answer": (without("answer"), "has no 'answer'"),
    "a question that is no text": (SOUND | {"question": ["2"]}, "question must be a text, not ['2']"),
    "choices as a text": (SOUND | {"choices": "ab"}, "choices must be a list of 2 to 26 texts, not 'ab'"),
    "choices as an object": (SOUND | {"choices": {"a": 1, "b": 2}}, "choices must be a list of 2 to 26 texts"),
    "one choice": (SOUND | {"choices": ["a"]}, "choices must be a list of 2 to 26 texts"),
    "no choice": (SOUND | {"choices": []}, "choices must be a list of 2 to 26 texts"),
    "27 choices": (SOUND | {"choices": list(map(str, range(27)))}, "choices must be a list of 2 to 26 texts"),
    "a choice that is no text": (SOUND | {"choices": ["a", 4]}, "choices[1] must be a text, not 4"),
    "a choice that is a list": (SOUND | {"choices": [["a"], "a"]}, "choices[0] must be a text, not ['a']"),
    "an empty choice": (SOUND | {"choices": ["a", ""]}, "choices[1] must not be empty"),
    "a choice twice": (SOUND | {"choices": ["a", "b", "a"]}, "choices must all differ; 'a' is there twice"),
    "answer past the end": (SOUND | {"answer": 2}, "answer must be the index of a choice, 0 to 1, not 2"),
    "answer before the start": (SOUND | {"answer": -1}, "answer must be the index of a choice, 0 to 1, not -1"),
    "answer as a letter": (SOUND | {"answer": "A"}, "answer must be the index of a choice, 0 to 1, not 'A'"),
    "answer as a truth": (SOUND | {"answer": True}, "answer must be the index of a choice, 0 to 1, not True"),
    "answer as a fraction": (SOUND | {"answer": 1.0}, "answer must be the index of a choice, 0 to 1, not 1.0"),
    "no answer given": (SOUND | {"answer": None}, "answer must be the index of a choice, 0 to 1, not None"),
    "an id that is a number": (SOUND | {"id": 7}, "id must be a text, not 7"),
    "an empty category": (SOUND | {"category": ""}, "category must not be empty"),
    "no category given": (SOUND | {"category": None}, "category must be a text, not None; leave the key out"),
    "half a surrogate pair": (SOUND | {"question": "\ud83d"}, "question must be valid Unicode"),
    "half a pair in a choice": (SOUND | {"choices": ["a", "\udc00"]}, "choices[1] must be valid Unicode"),
}
LINES = {
    "cut off": (b'{"question": "2', "must be one JSON object: Unterminated string starting at (column 14)"),
    "two objects": (json.dumps(SOUND).encode() * 2, "must be one JSON object: Extra data"),
    "a key twice": (b'{"question": "", "question": "", "choices": ["a", "b"], "answer": 0}', "a key is there twice"),
    "not a number": (b'{"question": "", "choices": ["a", "b"], "answer": NaN}', "answer must be the index"),
    "an endless number": (b'{"answer": ' + b"9" * 5000 + b"}", "must be one JSON object: Exceeds the limit"),
    "brackets by the thousand": (b"[" * 100_000, "must be one JSON object: maximum recursion depth"),
    "Latin-1": ('{"question": "né"'.encode("latin-1"), "not UTF-8 at byte 15 of the line; save the file as UTF-8"),
    "UTF-16": (json.dumps(SOUND).encode("utf-16"), "not UTF-8 at byte 0"),
    "zeros": (bytes(100), "must be one JSON object"),
}
CASES = {
    **{name: (json.dumps(content).encode(), message) for name, (content, message) in OBJECTS.items()},
    **LINES,
}


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_line_is_refused_by_its_number(tmp_path: Path, name: str) -> None:
    line, message = CASES[name]
    file = tmp_path / "q.jsonl"
    file.write_bytes(json.dumps(SOUND).encode() + b"\n\n" + line + b"\n")
    with pytest.raises(UsageError, match=re.escape(f"{file}: line 3: ")) as caught:
        read_items(file)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 400 + len(str(file)), "a stranger's text is not poured over the terminal"


def test_a_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    file = tmp_path / "q.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + json.dumps(SOUND).encode())
    with pytest.raises(UsageError, match=r"line 1: must be one JSON object: Unexpected UTF-8 BOM"):
        read_items(file)


def test_a_repeated_id_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "q.jsonl"
    file.write_text("\n".join(json.dumps(SOUND | {"id": name}) for name in ("x", "y", "x")))
    with pytest.raises(UsageError, match=r"line 3: id must be unique; line 1 has 'x' as well"):
        read_items(file)


def test_a_line_without_end_takes_no_memory(tmp_path: Path) -> None:
    file = tmp_path / "q.jsonl"
    with file.open("wb") as out:
        out.truncate(1 << 32)  # sparse: 4 GiB of zeros
    tracemalloc.start()
    try:
        with pytest.raises(UsageError, match=f"line 1: is longer than {MAX_LINE_BYTES} bytes"):
            read_items(file)
        assert tracemalloc.get_traced_memory()[1] < 8 * MAX_LINE_BYTES
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("content", [b"", b"\n \n\t\n"])
def test_a_file_without_questions_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "q.jsonl"
    file.write_bytes(content)
    with pytest.raises(UsageError, match=f"{re.escape(str(file))}: has no question; give one JSON object per line"):
        read_items(file)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no such file"):
        read_items(tmp_path / "missing")
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        read_items(tmp_path)
