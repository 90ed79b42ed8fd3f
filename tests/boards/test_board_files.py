"""Test a board file of the user, and its possible mistakes."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.board import RESOURCES, USABLE, Board
from edgedec.boards import find_board, read_board
from edgedec.errors import UsageError

GOOD = """\
name = "my-board"
title = "My board"
part = "xc7z010clg400-1"
family = "zynq-7000"
clock_hz = 100e6
memory_kind = "DDR3"
memory_bytes = 0x2000_0000
memory_peak_bytes_s = 2100000000
ports = 4
port_bytes = 8
port_protocol = "AXI3"
burst_beats = 16
power_sensors = ["ina219"]
link = "axi"

[has]
lut = 17600
ff = 35200
bram36 = 60
uram = 0
dsp = 80

[sources]
has = "AMD DS190"
"""


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    return tmp_path / "my_board.toml"


def without(key: str, text: str = GOOD) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith(f"{key} ="))


def with_(key: str, value: str, text: str = GOOD) -> str:
    """Return the same file with another value, before the first table."""
    return f"{key} = {value}\n" + without(key, text)


def test_a_toml_file_is_a_board(toml: Path) -> None:
    toml.write_text(GOOD)
    board = find_board(str(toml))
    assert (board.name, board.has["dsp"], board.memory_bytes) == ("my-board", 80, 1 << 29)
    assert board.power_sensors == ("ina219",)
    assert (type(board.memory_peak_bytes_s), board.bandwidth_kind) == (float, "peak")
    assert (board.most, board.pynq, board.packs) == (USABLE, None, True)
    assert board.sources["has"] == "AMD DS190"
    assert board.sources["clock_hz"] == board.sources["link"] == "my_board.toml", "the file itself"
    keys = {line.split()[0] for line in GOOD.split("[has]")[0].splitlines() if line}
    assert set(board.sources) == keys - {"name"} | {"has"}
    assert find_board(toml) == board


def test_all_members_can_be_written_in_toml(toml: Path) -> None:
    """Write the KV260 out as a file, and compare."""

    def value(member: Any) -> str:
        if isinstance(member, dict):
            return "{" + ", ".join(f"{key} = {value(item)}" for key, item in member.items()) + "}"
        return (
            str(list(member)) if isinstance(member, tuple) else repr(member) if isinstance(member, str) else str(member)
        )

    members = find_board("kv260").members()
    lines = [f"{key} = {value(member)}" for key, member in members.items() if member is not None and key != "sources"]
    sources = [f"{key} = '''{member}'''" for key, member in members["sources"].items()]
    toml.write_text("\n".join([*lines, "[sources]", *sources]))
    assert find_board(toml) == find_board("kv260")
    toml.write_text("\n".join([*lines, "[sources]", *sources]).replace("250000000.0", "200e6"))
    with pytest.raises(UsageError, match="edgedec has another board 'kv260'; give this one a name of its own"):
        find_board(toml)


def test_a_python_file_is_a_board(tmp_path: Path) -> None:
    file = tmp_path / "my-board.py"
    file.write_text(f"from edgedec.board import Board\nBOARD = Board(**{_members()!r})\n")
    assert find_board(str(file)) == Board(**_members())
    file.write_text("BOARD = {'name': 'x'}\n")
    with pytest.raises(UsageError, match=r"my-board.py: must define BOARD, an edgedec.board.Board, not dict$"):
        find_board(file)
    file.write_text("import a_tool_that_is_not_there\n")
    with pytest.raises(ModuleNotFoundError, match="a_tool_that_is_not_there"):
        find_board(file)
    file.write_text("def (\n")
    with pytest.raises(SyntaxError):
        find_board(file)


@cache
def _members() -> dict[str, Any]:
    import tomllib

    members = tomllib.loads(GOOD)
    return members | {"power_sensors": tuple(members["power_sensors"])}


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere.toml", "nowhere.toml: there is no such file; check the spelling of the path$"),
        ("./nowhere.py", "nowhere.py: there is no such file; check the spelling of the path$"),
        ("./kv260", r"kv260: must end in \.toml or \.py$"),
        ("a/b.json", r"a/b.json: must end in \.toml or \.py$"),
        ("folder.toml", "folder.toml: is no file$"),
        ("/dev/null", r"/dev/null: must end in"),
    ],
)
def test_another_kind_of_file_is_refused(
    path: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(UsageError, match=f"^board file .*{message}"):
        find_board(path)


@pytest.mark.parametrize(
    "data",
    [
        b"name = ",
        b"\xff\xfe",
        b"name = 'x'\nname = 'y'\n",
        b"x = " + b"[" * 100_000,
        b"ports = " + b"9" * 5_000,
        b"[has]\n[has]\n",
        b"\x00",
    ],
    ids=["cut", "latin", "twice", "deep", "long", "table", "nul"],
)
def test_invalid_toml_is_refused(data: bytes, toml: Path) -> None:
    toml.write_bytes(data)
    with pytest.raises(UsageError, match=r"^board file .*my_board.toml: not valid TOML: "):
        read_board(toml)


@pytest.mark.rtl(sample=20)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "missing name, title, part, family, has, clock_hz, memory_kind, memory_bytes, memory_peak_bytes_s, ports"),
        (without("ports", without("link")), "missing ports, link$"),
        ("lutts = 5\ncolour = 'red'\n" + GOOD, "unknown 'lutts, colour'; known: name, title, part"),
        (GOOD + "[has.more]\nx = 1\n", r"has must be a number for each of lut, ff, bram36, uram, dsp, not \{"),
        (without("dsp"), "has must be a number for each of lut, ff"),
        (GOOD + "bandwidth = 'x'\n", "sources must be by names of members, not 'bandwidth'"),
        (GOOD + "clock_hz = 5\n", "sources.clock_hz must be a line of text, not 5"),
        (GOOD + "clock_hz = ''\n", "sources.clock_hz must be a line of text"),
        (GOOD + "[most]\nlut = 1.5\n", "most.lut must be above 0 and at most 1, not 1.5"),
        (GOOD + "[most]\nlut = nan\n", "most.lut must be above 0 and at most 1, not nan"),
        (GOOD + "[most]\nram = 0.5\n", "most must be shares of lut, ff"),
        (GOOD.replace("lut = 17600", "lut = 0"), "has.lut must be a whole number, with at least a LUT"),
        (GOOD.replace("lut = 17600", "lut = true"), "has.lut must be a whole number"),
        (GOOD.replace("lut = 17600", "lut = 17600.0"), "has.lut must be a whole number"),
        (GOOD.replace("dsp = 80", "dsp = -1"), "has.dsp must be a whole number"),
        (with_("name", "'My_Board'"), "name must be lower-case letters and digits with single dashes"),
        (with_("name", "'../kv260'"), "name must be lower-case"),
        (with_("name", "''"), "name must be lower-case"),
        (with_("name", "5"), "name must be lower-case"),
        (with_("name", "'" + "a" * 1000 + "'"), "name must be lower-case"),
        (with_("title", "'a\u202eb'"), "title must be a line of text"),
        (with_("title", '"a\\nb"'), "title must be a line of text"),
        (with_("title", '"a\\u001b[2Jb"'), "title must be a line of text"),
        (with_("family", "'virtex'"), "family must be one of zynq-ultrascale\\+, zynq-7000, ecp5, not 'virtex'"),
        (with_("family", "[]"), "family must be one of"),
        (with_("clock_hz", "'100e6'"), "clock_hz must be a number from 1e\\+06 to 2e\\+09, not '100e6'"),
        (with_("clock_hz", "nan"), "clock_hz must be a number .*, not nan"),
        (with_("clock_hz", "inf"), "clock_hz must be a number .*, not inf"),
        (with_("clock_hz", "1e999"), "clock_hz must be a number .*, not inf"),
        (with_("clock_hz", "true"), "clock_hz must be a number .*, not True"),
        (with_("clock_hz", "100"), "clock_hz must be a number .*, not 100"),
        (with_("clock_hz", "2024-01-01"), "clock_hz must be a number"),
        (with_("memory_bytes", "512.0"), "memory_bytes must be a whole number"),
        (with_("memory_bytes", "-1"), "memory_bytes must be a whole number"),
        (with_("memory_bytes", "0x" + "f" * 10_000), "memory_bytes must be .*, not a number that is too long to show"),
        (with_("ports", "3"), "ports must be one of 1, 2, 4, not 3"),
        (with_("ports", "4.0"), "ports must be one of 1, 2, 4, not 4.0"),
        (with_("ports", "true"), "ports must be one of 1, 2, 4, not True"),
        (with_("port_bytes", "12"), "port_bytes must be one of 4, 8, 16, 32, 64, not 12"),
        (with_("burst_beats", "64"), "burst_beats must be at most 16 with AXI3, not 64"),
        (with_("power_sensors", "'ina219'"), "power_sensors must be names of hwmon devices"),
        (with_("power_sensors", "['../../etc']"), "power_sensors must be names of hwmon devices"),
        (with_("memory_model", "'KV260_FLAT'"), "memory_model must be one of KV260, not 'KV260_FLAT'"),
        (with_("link", "'usb'"), "link must be one of axi, uart, not 'usb'"),
        (with_("link", "'uart'"), "baud is needed with link uart and for nothing else"),
        (with_("baud", "9600"), "baud is needed with link uart and for nothing else"),
        (with_("oscillator_pin", "'H16'"), "oscillator_hz and oscillator_pin belong together"),
        (with_("host_cores", "2"), "host_cores and host_clock_hz belong together"),
        (with_("memory_measured_bytes_s", "2.2e9"), "memory_measured_bytes_s must be at most memory_peak_bytes_s 2.1e"),
        (with_("cma_bytes", "0x2000_0001"), "cma_bytes must be at most memory_bytes 536870912, not 536870913"),
    ],
)
def test_a_wrong_member_is_named(text: str, message: str, toml: Path) -> None:
    toml.write_text(text)
    with pytest.raises(UsageError, match=f"^board file .*my_board.toml: .*{message}") as caught:
        read_board(toml)
    assert len(str(caught.value)) < 1000
    assert str(caught.value).isprintable()


_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.sampled_from(RESOURCES), st.one_of(st.integers(), st.floats(), st.text(max_size=3))),
)


@pytest.mark.thorough
@given(st.sampled_from(sorted(_members())), _VALUES)
def test_any_value_is_accepted_or_refused_by_its_name(member: str, value: Any) -> None:
    refusal, board = "", None
    try:
        board = Board(**{**_members(), member: value})
    except UsageError as error:
        refusal = str(error)
    assert board == Board(**board.members()) if board else re.search(rf"\b{member}\b|belong together|link", refusal)
