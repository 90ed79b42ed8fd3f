"""Check which files of the kernels' C++ include which others."""

from __future__ import annotations

import re
from collections.abc import Iterator

from edgedec.runtime.kernels.recipe import FOLDER

INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
VENDOR = "onnxruntime/onnxruntime_c_api.h"
ADAPTER = "sessions/onnxruntime.cpp"
VENDORS_NAME = re.compile(r"\b(?:Ort[A-Z]\w*|ORT_\w+|ONNX_\w+)")  # a type or constant of ONNX Runtime


def sources() -> Iterator[tuple[str, str]]:
    """Yield the path from the kernels' folder, and the text, of each file of C++."""
    for path in sorted(FOLDER.rglob("*.?pp")):
        yield path.relative_to(FOLDER).as_posix(), path.read_text("utf-8")


def test_one_file_knows_onnx_runtime() -> None:
    assert [name for name, text in sources() if VENDOR in INCLUDE.findall(text)] == [ADAPTER]
    assert {name for name, text in sources() if VENDORS_NAME.search(text)} == {ADAPTER}
