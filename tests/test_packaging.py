"""Check what reaches a user: wheel and sdist hold the tree's package files, and the wheel works outside of the tree."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from edgedec.runtime.kernels.recipe import LIBRARY, LOOP_LIBRARY, find_compiler

FOLDERS = ("edgedec", "hw", "quantize", "runtime", "boards", "sim")
# packages outside of the default environment; a module may name one of them when it is imported
OF_AN_EXTRA = (
    "amaranth",
    "amaranth_boards",
    "cocotb",
    "fastapi",
    "h11",
    "matplotlib",
    "pynq",
    "torch",
    "transformers",
    "uvicorn",
)

BUILD = (sys.executable, "-m", "build", "--no-isolation")
INSTALLED_LIBRARY = f"edgedec/runtime/kernels/{LIBRARY}"
INSTALLED_LIBRARIES = (INSTALLED_LIBRARY, f"edgedec/runtime/loop/{LOOP_LIBRARY}")

# script that runs in an empty folder, without the editable install, which would provide a module that the wheel lacks
IMPORT_ALL = """
import importlib, json, pathlib, sys
target = pathlib.Path(sys.argv[1])
sys.meta_path = [finder for finder in sys.meta_path if "__editable__" not in getattr(finder, "__module__", "")]
sys.path.insert(0, str(target))
missing = {}
for path in sorted((target / "edgedec").rglob("*.py")):
    if path.name != "__main__.py":
        parts = path.relative_to(target).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        try:
            file = importlib.import_module(name).__file__
        except ModuleNotFoundError as error:
            missing[name] = error.name
        else:
            assert pathlib.Path(file) == path, f"{name} came from {file}"
print(json.dumps(missing))
"""


def installed_name(path: Path) -> str:
    """Return the name of a file of the tree in site-packages: hw/x.py is edgedec/hw/x.py."""
    return path.as_posix() if path.parts[0] == "edgedec" else f"edgedec/{path.as_posix()}"


def package_files(root: Path) -> dict[str, bytes]:
    """Return the content of every file in the package folders, by its installed name, without products of an editable
    install.
    """
    return {
        installed_name(path.relative_to(root)): path.read_bytes()
        for folder in FOLDERS
        for path in (root / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.name not in (LIBRARY, LOOP_LIBRARY, ".gitignore")
    }


def run(*command: str | Path, cwd: Path, cxx: str | None = None) -> str:
    """Return the standard output of a command; ``cxx`` sets the C++ compiler like a user does."""
    environment = os.environ if cxx is None else {**os.environ, "CXX": cxx}
    words = [str(part) for part in command]
    process = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, f"{command} failed:\n{process.stdout}\n{process.stderr}"
    return process.stdout if cxx is None else process.stdout + process.stderr


def build(kind: str, source: Path, output: Path) -> Path:
    """Build one wheel or sdist with the setuptools of this environment, without a network."""
    run(*BUILD, f"--{kind}", "--outdir", output, source, cwd=source)
    (archive,) = output.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return archive


def wheel_files(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}


@pytest.fixture(scope="module")
def clean_tree(tmp_path_factory: pytest.TempPathFactory, project_root: Path) -> Path:
    """Return a copy without build products, because those of an earlier build would be packed again."""
    copy = tmp_path_factory.mktemp("tree") / "edgedec"
    unwanted = shutil.ignore_patterns(
        ".git", ".venv*", ".typing", ".*_cache", "build", "dist", "*.egg-info", "__pycache__", LIBRARY, LOOP_LIBRARY
    )
    shutil.copytree(project_root, copy, ignore=unwanted)
    return copy


@pytest.fixture(scope="module")
def wheel(clean_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", clean_tree, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def unpacked_sdist(clean_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    sdist = build("sdist", clean_tree, tmp_path_factory.mktemp("sdist"))
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (top,) = folder.iterdir()
    return top


def test_every_folder_with_python_files_is_a_package(project_root: Path) -> None:
    holding = {path.parent for folder in FOLDERS for path in (project_root / folder).rglob("*.py")}
    assert [str(folder) for folder in holding if not (folder / "__init__.py").exists()] == []


def test_every_dependency_has_a_reason(project_root: Path) -> None:
    text = (project_root / "pyproject.toml").read_text("utf-8")
    project = tomllib.loads(text)["project"]
    extras = project["optional-dependencies"].values()
    dependencies = [*project["dependencies"], *(line for extra in extras for line in extra)]
    explained = re.findall(r'^ +#.*\n +"(.+)",$', text, re.MULTILINE)
    assert explained == dependencies


@pytest.mark.nightly
def test_wheel_holds_every_file_of_the_package_folders(clean_tree: Path, wheel: Path) -> None:
    files = wheel_files(wheel)
    assert "edgedec/quantize/distil/__init__.py" in files
    assert "edgedec/py.typed" in files
    if find_compiler():
        for library in INSTALLED_LIBRARIES:
            assert files.pop(library)[1:4] in (b"ELF", b"\xfa\xed\xfe")  # Linux, macOS
        # Machine code that does not use Python: one wheel for every version.
        assert re.search(r"-py3-none-(?!any).+\.whl$", wheel.name)
    assert files == package_files(clean_tree)


@pytest.mark.nightly
def test_sdist_holds_the_same_files_and_builds_the_same_wheel(
    clean_tree: Path, wheel: Path, unpacked_sdist: Path, tmp_path: Path
) -> None:
    assert package_files(unpacked_sdist) == package_files(clean_tree)
    for name in (
        "LICENSE",
        "Makefile",
        "README.md",
        ".ci/run",
        "examples/generate.py",
        "tests/conftest.py",
        "SECURITY.md",
        "CITATION.cff",
    ):
        assert (unpacked_sdist / name).is_file(), f"{name} is not in the sdist"
    again, files = wheel_files(build("wheel", unpacked_sdist, tmp_path)), wheel_files(wheel)
    assert again.keys() == files.keys()
    emptied = dict.fromkeys(INSTALLED_LIBRARIES, b"")
    assert again | emptied == files | emptied


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("cxx", "name", "message"),
    [
        ("/no/such/compiler", r"-py3-none-any\.whl$", "no C++ compiler: edgedec goes without its CPU kernels"),
        ("false", r"-py3-none-.+\.whl$", "edgedec works without its CPU kernels, on the portable graph"),
    ],
)
def test_a_wheel_without_a_working_compiler_lacks_the_library(
    clean_tree: Path, tmp_path: Path, cxx: str, name: str, message: str
) -> None:
    source = tmp_path / "tree"
    shutil.copytree(clean_tree, source, ignore=shutil.ignore_patterns("build", "dist", "*.egg-info"))
    output = run(*BUILD, "--wheel", "--outdir", tmp_path / "wheel", source, cwd=source, cxx=cxx)
    assert message in output
    (wheel,) = (tmp_path / "wheel").iterdir()
    assert re.search(name, wheel.name)
    assert wheel_files(wheel) == package_files(source)


HDL_COMMAND = """
import sys
sys.meta_path = [finder for finder in sys.meta_path if "__editable__" not in getattr(finder, "__module__", "")]
sys.path.insert(0, sys.argv[1])
from edgedec.host.install_hint import install_extra
print(install_extra("hdl"))
"""
WITHOUT_LIBRARY = """
import logging, sys
logging.basicConfig(format="%(message)s")
sys.meta_path = [finder for finder in sys.meta_path if "__editable__" not in getattr(finder, "__module__", "")]
sys.path.insert(0, sys.argv[1])
from edgedec.runtime.kernels import load
assert load() is None and load() is None
"""


@pytest.mark.nightly
def test_a_missing_library_is_reported_once(clean_tree: Path, wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    (tmp_path / INSTALLED_LIBRARY).unlink(missing_ok=True)
    command = [sys.executable, "-c", WITHOUT_LIBRARY, str(tmp_path)]
    environment = {key: value for key, value in os.environ.items() if key != "EDGEDEC_KERNEL"}
    process = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    (line,) = process.stderr.splitlines()
    assert line.startswith(f"{LIBRARY} was not built; with a C++ compiler on the PATH, ")
    assert line.endswith("(until then models run with the portable graph, which is slower)")


@pytest.mark.nightly
def test_the_wheel_installs_and_imports_outside_of_the_tree(wheel: Path, tmp_path: Path) -> None:
    target, empty = tmp_path / "site", tmp_path / "empty"
    empty.mkdir()
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", target)
    run(*pip, wheel, cwd=empty)
    tops = {path.name for path in target.iterdir()} - {"bin", "__pycache__"}
    assert tops == {"edgedec", next(name for name in tops if re.fullmatch(r"edgedec_toolchain-.+\.dist-info", name))}
    missing: dict[str, str] = json.loads(run(sys.executable, "-c", IMPORT_ALL, target, cwd=empty).splitlines()[-1])
    assert {module: name for module, name in missing.items() if name.split(".")[0] not in OF_AN_EXTRA} == {}
    command = run(sys.executable, "-c", HDL_COMMAND, target, cwd=empty)
    assert "-m pip install 'amaranth<" in command
    assert "edgedec" not in command.partition(" install ")[2]
