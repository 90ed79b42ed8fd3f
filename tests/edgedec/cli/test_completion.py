"""Test ``edgedec completion``: run the scripts in their shells, and compare their words with what edgedec takes."""

from __future__ import annotations

import os
import pty
import select
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer

from edgedec.bundle.embedded import EMBEDDED
from edgedec.cli.app import app
from edgedec.cli.completion import commands, words
from edgedec.quantize.methods import METHODS
from edgedec.quantize.pipeline import QuantizeOptions
from edgedec.quantize.synthetic.random_bundle import SHAPES
from edgedec.runtime.planning.speculation import DRAFTERS, POLICIES, VERIFIERS, SpecConfig
from edgedec.runtime.targets import device_names
from edgedec.runtime.targets.onnx import kv_choices
from tests.edgedec.cli.conftest import Edgedec

PATIENCE_S = 120.0

CASES = [
    ("edgedec qua", ["quantize"]),
    ("edgedec generate --spec-ty", ["--spec-type"]),
    ("edgedec generate -m demo --spec-type tri", ["trigram"]),
    ("edgedec generate --spec-tree d", ["delayed", "dynamic"]),
    ("edgedec chat --verifier t", ["transport", "traversal", "typical"]),
    ("edgedec chat --device web", ["webgpu"]),
    ("edgedec distil --device a", ["auto"]),
    ("edgedec plan --board kv", ["kv260"]),
    ("edgedec boards sh", ["show"]),
    ("edgedec boards show ulx", ["ulx3s-85f"]),
    ("edgedec quantize --method t", ["ternary"]),
    ("edgedec inspect demo-i", ["demo-int8"]),
    ("edgedec completion z", ["zsh"]),
    ("edgedec quantize check", ["checkpoint"]),
    ("edgedec generate -f sto", ["story one.txt"]),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "story one.txt").write_text("x")
    return tmp_path


def script(edgedec: Edgedec, folder: Path, shell: str) -> Path:
    outcome = edgedec("completion", shell)
    assert outcome.code == 0, outcome.stderr
    path = folder / f"completion.{shell}"
    path.write_text(outcome.stdout)
    return path


def lines(command: list[str], folder: Path) -> list[str]:
    process = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert (process.returncode, process.stderr) == (0, "")
    return process.stdout.splitlines()


BASH = r"""
source "$1"
COMP_WORDS=($2); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_edgedec 2>/dev/null  # compopt wants a completion under way
printf '%s\n' "${COMPREPLY[@]}"
complete -p edgedec
"""


@pytest.mark.thorough(sample=1)
@pytest.mark.skipif(not shutil.which("bash"), reason="bash is not installed")
@pytest.mark.parametrize(("typed", "expected"), CASES)
def test_bash_completes_words(edgedec: Edgedec, folder: Path, typed: str, expected: list[str]) -> None:
    output = lines(["bash", "--norc", "-c", BASH, "bash", str(script(edgedec, folder, "bash")), typed], folder)
    assert sorted(output[:-1]) == expected
    assert output[-1] == "complete -F _edgedec edgedec"


@pytest.mark.skipif(not shutil.which("bash"), reason="bash is not installed")
@pytest.mark.parametrize("typed", ["edgedec generate --spec-type = tri", "edgedec generate -n 3 --spec-type tri"])
def test_bash_splits_words_at_an_equals_sign(edgedec: Edgedec, folder: Path, typed: str) -> None:
    output = lines(["bash", "--norc", "-c", BASH, "bash", str(script(edgedec, folder, "bash")), typed], folder)
    assert output[:-1] == ["trigram"]


@pytest.mark.thorough(sample=1)
@pytest.mark.skipif(not shutil.which("fish"), reason="fish is not installed")
@pytest.mark.parametrize(("typed", "expected"), CASES)
def test_fish_completes_words(edgedec: Edgedec, folder: Path, typed: str, expected: list[str]) -> None:
    program = f"source {shlex.quote(str(script(edgedec, folder, 'fish')))}; complete -C {shlex.quote(typed)}"
    output = lines(["fish", "--no-config", "-c", program], folder)
    assert sorted(line.partition("\t")[0].removesuffix("/") for line in output) == expected


class Terminal:
    """Run a shell on a pseudo-terminal, so that it is interactive."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self._master, slave = pty.openpty()
        environment = {**os.environ, "TERM": "dumb", "HOME": str(folder), "COLUMNS": "200"}
        self.process = subprocess.Popen(command, cwd=folder, env=environment, stdin=slave, stdout=slave, stderr=slave)
        os.close(slave)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def read_until(self, text: str) -> str:
        """Return the output up to and including ``text``."""
        output, end = "", time.monotonic() + PATIENCE_S
        while text not in output:
            ready, _, _ = select.select([self._master], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"{text!r} never came, but {output!r}"
            output += os.read(self._master, 4096).decode(errors="replace")
        return output

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


@pytest.mark.thorough
@pytest.mark.skipif(not shutil.which("zsh"), reason="zsh is not installed")
def test_zsh_completes_words(edgedec: Edgedec, folder: Path) -> None:
    path = script(edgedec, folder, "zsh")
    shell = Terminal(["zsh", "-f", "-i"], folder)
    try:
        shell.type(f"autoload -U compinit && compinit -u -D && source {shlex.quote(str(path))}; PS1='<rea''dy>'\r")
        shell.read_until("<ready>")  # zsh does not get keys that are typed before the prompt appears
        for typed, expected in CASES:
            if len(expected) > 1:
                continue  # several words open a menu
            shell.type(f"{typed}\t\x01: \r")  # complete, then turn the line into a command that does nothing
            output = shell.read_until("<ready>")
            assert expected[0].replace(" ", "\\ ") in output, typed
    finally:
        shell.close()


def group() -> Any:
    return typer.main.get_command(app)


def test_every_command_and_option_is_completed() -> None:
    by_name = {command.name: command for command in commands(group())}
    expected = {name for name in group().commands if name != "boards"} | {"boards list", "boards show"}
    assert set(by_name) == expected
    generate = {name for option in by_name["generate"].options for name in option.names}
    assert generate >= {"-m", "--model", "-md", "--spec-type", "--json", "-v", "-h", "--help", "-n"}
    for command in by_name.values():
        assert command.help, command.name


def test_the_completed_values_are_those_that_edgedec_takes() -> None:
    from edgedec.boards import board_names
    from edgedec.plugins import names
    from edgedec.runtime.decoders._plugin import DECODERS
    from edgedec.sim.verify.suite import known

    lists = words()
    assert {value.rstrip(":") for value in lists["--device"]} == set(device_names())
    assert lists["--spec-type"] == tuple(names(DRAFTERS))
    assert lists["--spec-tree"] == tuple(names(POLICIES))
    assert lists["--verifier"] == tuple(names(VERIFIERS))
    assert lists["--decoder"] == tuple(names(DECODERS))
    assert lists["--board"] == lists["boards show BOARD"] == tuple(board_names())
    assert lists["quantize --method"] == METHODS
    assert [QuantizeOptions(method=method).method for method in METHODS] == list(METHODS)
    assert set(lists["--shape"]) == set(SHAPES)
    assert set(lists["--bench"]) == {"all", *known()}
    assert {int(bits) for bits in lists["--kv-bits"]} == {16, 8, 4, 32} >= set(kv_choices("cpu"))
    for drafter in set(lists["--spec-type"]) - {"model"}:
        SpecConfig(drafter=drafter)


def test_every_list_belongs_to_an_option() -> None:
    described = commands(group())
    spelled = {name for command in described for option in command.options for name in option.names}
    of_one = {f"{command.name} {name}" for command in described for option in command.options for name in option.names}
    of_one |= {f"{command.name} {command.argument.metavar}" for command in described if command.argument is not None}
    assert set(words()) <= spelled | of_one


def test_bundles_are_offered_by_name_and_as_folders() -> None:
    by_name = {command.name: command for command in commands(group())}
    for name in ("generate", "plan", "eval", "bench", "simulate", "build-bitstream"):
        (model,) = (option.value for option in by_name[name].options if "--model" in option.names)
        assert model is not None, name
        assert (model.words, model.paths) == (EMBEDDED, "folders"), name


def test_what_an_option_takes_is_offered_and_a_switch_takes_nothing() -> None:
    values = {
        (command.name, name): option.value
        for command in commands(group())
        for option in command.options
        for name in option.names
    }
    for name in ("plan", "generate", "chat", "build-bitstream"):
        board = values[name, "--board"]
        assert board is not None, name
        assert (bool(board.words), board.paths) == (True, "files"), "a board is a name or a file"
    output = values["quantize", "--output"]
    assert output is not None
    assert (output.words, output.paths) == ((), "folders"), "a new bundle takes no name of an embedded one"
    for switch in ("--json", "-v", "--verbose", "--echo", "--help"):
        assert values["generate", switch] is None, switch


def test_an_unknown_shell_is_refused(edgedec: Edgedec) -> None:
    outcome = edgedec("completion", "tcsh")
    assert (outcome.code, outcome.stdout) == (2, "")
    assert "SHELL must be one of bash, zsh, fish, not 'tcsh'" in outcome.stderr


@pytest.mark.thorough
def test_nothing_heavy_is_imported() -> None:
    heavy = ("numpy", "onnxruntime", "onnx", "tokenizers", "amaranth", "torch", "rich")
    program = (
        "import sys; sys.argv = ['edgedec', 'completion', 'bash']\n"
        "from edgedec.cli.app import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        f"assert not [name for name in {heavy!r} if name in sys.modules]"
    )
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (process.returncode, process.stderr) == (0, "")
