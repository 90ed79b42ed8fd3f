"""Check which files of the kernels' C++ include which others."""

from __future__ import annotations

import re
from collections.abc import Iterator

from edgedec.runtime.kernels.recipe import FOLDER

INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
VENDOR = "onnxruntime/onnxruntime_c_api.h"
ADAPTER = "sessions/onnxruntime.cpp"
# folders from the lowest: files include files of their own folder and of those before it
ROOMS = ("products", "rows", "attention", "weights", "operators", "sessions")
VENDORS_NAME = re.compile(r"\b(?:Ort[A-Z]\w*|ORT_\w+|ONNX_\w+)")  # a type or constant of ONNX Runtime


def sources() -> Iterator[tuple[str, str]]:
    """Yield the path from the kernels' folder, and the text, of each file of C++."""
    for path in sorted(FOLDER.rglob("*.?pp")):
        yield path.relative_to(FOLDER).as_posix(), path.read_text("utf-8")


def upward(name: str, text: str) -> list[str]:
    """Return the files of higher folders, or without a folder, that a file in one of ``ROOMS`` includes."""
    level = {room: at for at, room in enumerate(ROOMS)}
    own = level.get(name.split("/")[0], len(ROOMS))
    return [other for other in INCLUDE.findall(text) if other != VENDOR and level.get(other.split("/")[0], 99) > own]


def test_no_file_includes_one_of_a_higher_folder() -> None:
    found = {name: upward(name, text) for name, text in sources()}
    assert {name.split("/")[0] for name in found if "/" in name} == set(ROOMS)
    assert {name: others for name, others in found.items() if others} == {}
    assert upward("rows/rows.hpp", '#include "attention/elements.hpp"\n#include "products/half.hpp"') == [
        "attention/elements.hpp"
    ]
    assert upward("operators/rows.cpp", '#include "rows.hpp"') == ["rows.hpp"]


def test_one_file_knows_onnx_runtime() -> None:
    assert [name for name, text in sources() if VENDOR in INCLUDE.findall(text)] == [ADAPTER]
    assert {name for name, text in sources() if VENDORS_NAME.search(text)} == {ADAPTER}
