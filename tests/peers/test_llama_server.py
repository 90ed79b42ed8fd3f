"""Test the start of ``edgedec serve`` by llama-server's options, and the comparison with the list of left-out tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from edgedec.errors import ToolError, UsageError
from tests.peers import llama_server_tests
from tests.peers.llama_server import serve_arguments
from tests.peers.llama_server_tests import entry_of, read_list, run_suite

MODEL = ["--hf-repo", "ggml-org/test-model-stories260K"]

# A suite of the same form as llama.cpp's, whose servers only start and end.
UTILS = """
import os
import subprocess
import wget


class ServerPreset:
    @staticmethod
    def load_all():
        raise AssertionError("a model of the hub was asked for")


def start(*options):
    command = [os.environ["LLAMA_SERVER_BIN_PATH"], *options]
    return subprocess.run(command, capture_output=True, text=True)
"""
CONFTEST = """
import pytest
from utils import *


@pytest.fixture(scope="session", autouse=True)
def load():
    ServerPreset.load_all()
"""
TESTS = """
import pytest
from utils import *


def test_option():
    assert "--lora has no counterpart" in start("--lora", "x").stderr


@pytest.mark.parametrize("value", ["a b", "c"])
def test_value(value):
    assert value == "c"


def test_file(tmp_path):
    path = wget.download("an address", out=str(tmp_path / "tmp" / "model"))
    assert open(path).read() == ""


@pytest.mark.skip(reason="never")
def test_skipped():
    assert False
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "unit").mkdir()
    (tmp_path / "utils.py").write_text(UTILS)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "unit" / "test_one.py").write_text(TESTS)
    return tmp_path


def test_options_keep_their_meaning() -> None:
    context = ["--ctx-size", "512", "--parallel", "2", "--no-slots"]
    access = ["--api-key", "k", "--cors-origins", "http://a,http://b", "--sleep-idle-seconds", "1"]
    arguments = serve_arguments(["--port", "80", "--temp", "0.8", *MODEL, *context, *access])
    text = " ".join(arguments)
    assert text.startswith("serve --model demo ")
    assert "--ctx-size 256 " in text + " "
    for part in ("--port 80", "--parallel 2", "--api-key k", "--cors-origin http://b", "--idle-unload 1"):
        assert part in text
    assert "--spec-type" not in text
    assert "--temp 0.8 " in text
    assert "--no-slots --no-metrics --chat-template chatml " in text


def test_what_llama_server_switches_on_is_on(tmp_path: Path) -> None:
    template = tmp_path / "a.jinja"
    template.write_text("{{ messages }}")
    text = " ".join(serve_arguments([*MODEL, "--slots", "--metrics", "--no-ui", "--chat-template-file", str(template)]))
    assert "--no-slots" not in text
    assert "--no-metrics" not in text
    assert "--no-ui" in text
    assert f"--chat-template-file {template} " in text
    assert "--chat-template " not in text
    assert "--chat-template chatml " in " ".join(serve_arguments([*MODEL, "--reasoning", "off"]))
    assert "--reasoning off " in " ".join(serve_arguments([*MODEL, "--reasoning", "off"]))
    assert "--chat-template llama3 " in " ".join(serve_arguments([*MODEL, "--chat-template", "llama3"]))


def test_texts_that_share_a_cache_have_the_whole_context() -> None:
    arguments = serve_arguments([*MODEL, "--kv-unified", "--ctx-size", "256", "--parallel", "4"])
    assert arguments[arguments.index("--ctx-size") + 1] == "256"
    assert serve_arguments([*MODEL, "--ctx-size", "8192"])[-1] == "1024"


def test_the_draft_model_is_the_embedded_one() -> None:
    drafter = ["--spec-type", "draft-simple", "--model-draft", "x.gguf", "--spec-draft-n-max", "4"]
    text = " ".join(serve_arguments([*MODEL, *drafter]))
    assert "--draft-max 4" in text
    assert text.endswith("--spec-type model --model-draft demo-draft")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*MODEL, "--lora", "x"], "--lora has no counterpart"),
        ([*MODEL, "--port"], "--port needs a value"),
        ([*MODEL, "--spec-type", "ngram-simple"], "ngram-simple has no counterpart"),
        (["--hf-repo", "another"], "cannot stand in for another"),
    ],
)
def test_what_has_no_counterpart_is_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        serve_arguments(arguments)


def test_entries_name_tests_and_nothing_else() -> None:
    entries = {"unit/a.py::one": "", "unit/a.py::two[x-": "", "unit/b.py": ""}
    assert entry_of("unit/a.py::one[y]", entries) == "unit/a.py::one"
    assert entry_of("unit/a.py::one_more", entries) is None
    assert entry_of("unit/a.py::two[x-1]", entries) == "unit/a.py::two[x-"
    assert entry_of("unit/a.py::two[z]", entries) is None
    assert entry_of("unit/b.py::three", entries) == "unit/b.py"
    assert entry_of("unit/b.py2::three", entries) is None


def test_the_list_gives_reasons() -> None:
    entries = read_list()
    assert len(entries) > 20
    assert all(reason and name.startswith("unit/") for name, reason in entries.items())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[group]]\nreason = "a"\ntests = ["unit/a.py", "unit/a.py"]', "stands twice"),
        ('[[group]]\ntests = ["unit/a.py"]', "no reason"),
    ],
)
def test_a_wrong_list_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "list.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        read_list(path)


@pytest.mark.thorough
def test_a_suite_is_compared_with_its_list(suite: Path, tmp_path: Path) -> None:
    entries = {"unit/test_one.py::test_value[a b]": "blanks", "unit/test_two.py": "gone"}
    outcome = run_suite(suite, entries=entries, log=tmp_path / "log")
    assert outcome.failed == []
    assert outcome.passed == [f"unit/test_one.py::test_{name}" for name in ("file", "option", "value[c]")]
    assert outcome.skipped == ["unit/test_one.py::test_skipped"]
    assert outcome.listed == {"unit/test_one.py::test_value[a b]": "blanks"}
    assert outcome.unused == ["unit/test_two.py"]
    assert "3 passed" in (tmp_path / "log").read_text()
    listed = run_suite(suite, entries=entries, listed=True)
    assert (listed.failed, listed.passed) == (["unit/test_one.py::test_value[a b]"], [])
    assert run_suite(suite, entries={}, words=["test_value"]).failed == ["unit/test_one.py::test_value[a b]"]


@pytest.mark.thorough
def test_the_status_tells_failures(suite: Path) -> None:
    command = [sys.executable, "-m", "tests.peers.llama_server_tests", "--tests", str(suite), "test_value"]
    process = subprocess.run(command, cwd=llama_server_tests.ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 1
    assert "failed unit/test_one.py::test_value[a b]" in process.stdout
    assert "1 passed, 1 failed" in process.stdout


@pytest.mark.thorough
def test_a_folder_without_tests_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="cannot be collected"):
        run_suite(tmp_path, entries={})
