"""The compilation of the kernels' library and of the loop's (``runtime/loop``). It imports nothing of edgedec, because
setup.py runs it before installation.

Objects are kept in the project's ``build/objects``, so that a second environment, a test or a pulled change compiles only
what has changed: the source, a file that it includes, an option or the compiler. Of two compilations in one project the
second waits for the first and takes its objects. ``python3 runtime/kernels/recipe.py`` makes those of both libraries, which
``.ci/environment`` does while pip looks for packages.

Any GCC or Clang can be used, including cross compilers: the target is that of the compiler (``-dumpmachine``).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

__all__ = ["LIBRARY", "LOOP_LIBRARY", "KernelBuildError", "build", "build_loop", "find_compiler"]

FOLDER = Path(__file__).resolve().parent
OBJECTS = FOLDER.parents[1] / "build" / "objects"
_MOST_OBJECTS = 512  # kept files; those that were used longest ago go
_ABANDONED_S = 3600.0  # seconds after which a half-written file belongs to nobody
_SUFFIX = "dylib" if sys.platform == "darwin" else "so"
LIBRARY, LOOP_LIBRARY = f"libedgedec_kernels.{_SUFFIX}", f"libedgedec_loop.{_SUFFIX}"

# Contraction is switched off, because a fused multiply-add rounds once where the reference rounds twice.
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-pthread")
WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Wconversion")
# Files of runtime/loop.
LOOP = (
    *(
        "accelerator",
        "api",
        "auto",
        "best_first",
        "copy",
        "delayed",
        "hardware",
        "model",
        "ngram",
        "rounds",
        "sampling",
    ),
    *("stand", "target", "trees", "trigram"),
)


def _in(folder: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{folder}/{name}" for name in names)


# Files of the kernels that are common to all processors: those without sessions, which tests link into programs, and others.
COMMON = (
    *("api", "dispatch"),
    *_in("products", "layout", "int8", "grid", "ternary_scalar", "int8_scalar", "grid_scalar"),
    *_in("attention", "attention", "attention_select", "attention_scalar", "value_store"),
    *_in("rows", "recurrent"),
)
SESSIONS = (
    *_in("operators", "operator", "records", "ternary", "int8", "grid", "attention", "rows", "recurrent", "fused"),
    *_in("operators", "copies", "heads"),
    *_in("sessions", "onnxruntime", "direct_session", "session"),
    *_in("weights", "weight_stream"),
)
_AVX512 = _in("products", "ternary_avx512vnni", "int8_avx512vnni", "grid_avx512vnni", "ternary_amx", "int8_amx")
# processor -> file -> options
PATHS = {
    "x86_64": {
        "products/int8_avx2": ("-mavx2",),
        **dict.fromkeys(_in("products", "ternary_avx2", "grid_avx2"), ("-mavx2", "-mf16c")),
        "attention/attention_avx2": ("-mavx2", "-mfma", "-mf16c"),
        **dict.fromkeys((*_AVX512, "attention/attention_avx512vnni"), ("-mavx512f", "-mavx512bw", "-mavx512vnni")),
    },
    "aarch64": {
        **dict.fromkeys((*_in("products", "ternary_neon", "int8_neon", "grid_neon"), "attention/attention_neon"), ()),
        **dict.fromkeys(
            _in("products", "ternary_neon_dotprod", "int8_neon_dotprod", "grid_neon_dotprod"),
            ("-march=armv8.2-a+dotprod",),
        ),
        **dict.fromkeys(
            _in("products", "ternary_neon_i8mm", "int8_neon_i8mm", "grid_neon_i8mm"), ("-march=armv8.2-a+i8mm",)
        ),
    },
}
# Options that some compilers in use refuse (GCC 9 and older), and the macro whose value 0 tells dispatch.cpp that the path's
# files were left out.
RECENT = {("-march=armv8.2-a+i8mm",): "EDGEDEC_I8MM"}
_SLOWEST = "attention_"  # first letters of the files that take longest: two of them take a quarter of the time of all
_SAME = {"arm64": "aarch64", "amd64": "x86_64"}


class KernelBuildError(Exception):
    """The compiler could not be run or failed; the message contains its output."""


def find_compiler() -> tuple[str, ...] | None:
    """Return the command in $CXX, or the first of c++, g++ and clang++ that is installed; None if there is none.

    None is also returned on Windows, whose compilers do not accept GCC's options.
    """
    if sys.platform == "win32":
        return None
    if command := os.environ.get("CXX", "").split():
        return tuple(command) if shutil.which(command[0]) else None
    return next(((path,) for name in ("c++", "g++", "clang++") if (path := shutil.which(name))), None)


def _run(command: Sequence[str]) -> str:
    try:
        process = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise KernelBuildError(f"{command[0]} cannot be run: {error}") from error
    if process.returncode:
        raise KernelBuildError(f"{' '.join(command)} failed:\n{process.stderr}")
    return process.stdout + process.stderr


def build(
    compiler: Sequence[str],
    output: Path,
    *,
    extra: Sequence[str] = (),
    driver: Path | None = None,
    units: Sequence[str] = (*COMMON, *SESSIONS),
) -> str:
    """Compile and link ``output``: the shared library, or, with ``driver``, a static program for tests.

    Args:
        compiler: the compiler's command.
        output: the file to write.
        extra: further options of the compiler.
        driver: C++ file with the main function of a program.
        units: names of the C++ files that are common to all processors.

    Returns:
        The compiler's output, which is empty without warnings.

    Raises:
        KernelBuildError: the compiler cannot be run, or fails.
    """
    machine = _run([*compiler, "-dumpmachine"]).partition("-")[0]
    paths = PATHS.get(_SAME.get(machine, machine), {})
    refused = {flags for flags in RECENT.keys() & paths.values() if not _accepts(compiler, flags)}
    sources = dict.fromkeys(units, ()) | {name: flags for name, flags in paths.items() if flags not in refused}
    extra = (*extra, *(f"-D{RECENT[flags]}=0" for flags in refused))
    files: list[tuple[Path, Sequence[str]]] = [(FOLDER / f"{name}.cpp", flags) for name, flags in sources.items()]
    if driver is not None:
        files.append((driver, ()))
    return _link(compiler, output, files, extra=extra, kind=("-shared",) if driver is None else ("-static",))


def build_loop(
    compiler: Sequence[str],
    output: Path,
    *,
    extra: Sequence[str] = (),
    driver: Path | None = None,
    static: bool = True,
) -> str:
    """Compile and link the library of ``runtime/loop``, or, with ``driver``, a program for tests.

    A program is static unless ``static`` is False. The other arguments, result and errors are those of ``build``.
    """
    folder = FOLDER.parent / "loop"
    files: list[tuple[Path, Sequence[str]]] = [(folder / f"{name}.cpp", (f"-I{folder}",)) for name in LOOP]
    if driver is not None:
        files.append((driver, (f"-I{folder}",)))
    kind = ("-shared",) if driver is None else ("-static",) * static
    return _link(compiler, output, files, extra=extra, kind=kind)


def _accepts(compiler: Sequence[str], flags: Sequence[str]) -> bool:
    """Return whether the compiler and its assembler know the instructions that ``flags`` allow."""
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        try:
            _run([*compiler, *flags, "-x", "c++", "-c", os.devnull, "-o", str(Path(scratch) / "empty.o")])
        except KernelBuildError:
            return False
    return True


def _link(
    compiler: Sequence[str],
    output: Path,
    files: Sequence[tuple[Path, Sequence[str]]],
    *,
    extra: Sequence[str],
    kind: Sequence[str],
    kept: Path | None = OBJECTS,
) -> str:
    """Compile files with options of their own and link them, as the linker's option ``kind`` says. Return the output.

    ``kept`` is the folder of objects; None compiles all of them.
    """
    # A start that finds the libraries does without these modules.
    import tempfile
    from concurrent.futures import ThreadPoolExecutor

    if kept is not None and kept == OBJECTS and not (FOLDER.parents[1] / "pyproject.toml").is_file():
        kept = None  # an installed package is no project
    objects_kept = None if kept is None else _Objects(kept, [*compiler, _run([*compiler, "--version"])])
    alone = nullcontext() if kept is None else _alone(kept)
    with alone, tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(os.cpu_count()) as pool:

        def compile_one(item: tuple[Path, Sequence[str]]) -> tuple[str, str]:
            source, flags = item
            name = f"{source.parent.name}-{source.stem}"  # folders have files of the same names
            file, includes = Path(scratch) / f"{name}.o", Path(scratch) / f"{name}.d"
            options = (*FLAGS, *WARNINGS, *flags, *extra, f"-I{FOLDER}", "-isystem", str(FOLDER / "vendor"))
            if objects_kept is not None and objects_kept.take(source, options, file):
                return str(file), ""
            said = _run([*compiler, *options, "-MD", "-MF", str(includes), "-c", str(source), "-o", str(file)])
            if objects_kept is not None and not said:  # a warning is to be seen again
                objects_kept.keep(source, options, file, includes)
            return str(file), said

        # The slowest come first, so that no core waits for one that began last.
        ordered = sorted(files, key=lambda item: not item[0].stem.startswith(_SLOWEST))
        objects = list(pool.map(compile_one, ordered))
        output.parent.mkdir(parents=True, exist_ok=True)
        # Link to another name and rename, so that processes that have mapped the old library keep it.
        beside = output.with_name(f".{output.name}.{os.getpid()}")
        messages = _run([*compiler, *kind, "-pthread", *extra, "-o", str(beside), *(name for name, _ in objects)])
        beside.replace(output)
    if objects_kept is not None:
        objects_kept.forget_old()
    return "".join(text for _, text in objects) + messages


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait until no other process compiles into ``folder``, so that two of them do not compile the same; say so on stderr.

    A folder that cannot be written, and a system without ``flock``, let all of them go on at once.
    """
    try:
        import fcntl

        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / "lock", os.O_CREAT | os.O_RDWR, 0o666)
    except (ImportError, OSError):
        yield
        return
    try:
        with suppress(OSError):  # a file system without locks
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                sys.stderr.write(f"another process compiles into {folder}; waiting for it\n")
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)  # and with it the lock, which also ends with the process


class _Objects:
    """Objects of earlier compilations. A folder that cannot be written keeps none.

    An object is named after its source, the options and the compiler. A file beside it has the digests of all files that
    the source includes, the system's too, and of the object, so that neither a changed header nor a damaged file is used.

    Parameters:
        folder: the folder, which is made.
        compiler: the compiler's command and version.
    """

    def __init__(self, folder: Path, compiler: Sequence[str]) -> None:
        self._folder, self._compiler = folder, compiler
        self._digests: dict[Path, str] = {}  # digests of included files, which many sources share

    def take(self, source: Path, options: Sequence[str], output: Path) -> bool:
        """Write the object of a source to ``output`` and return True; False if there is none, or something has changed."""
        kept = self._path(source, options)
        try:
            record = json.loads(kept.with_suffix(".json").read_text("utf-8"))
            if any(self._digest(Path(path)) != digest for path, digest in record["includes"].items()):
                return False
            content = kept.read_bytes()
            if _digest(content) != record["object"]:
                return False
            output.write_bytes(content)
            os.utime(kept)
        except (OSError, ValueError, KeyError, TypeError):
            return False
        return True

    def keep(self, source: Path, options: Sequence[str], file: Path, includes: Path) -> None:
        """Keep the object ``file`` of a source; ``includes`` is the compiler's list of what it includes, a make rule."""
        with suppress(OSError, ValueError):  # a rule that cannot be read keeps nothing
            rule = includes.read_text("utf-8").partition(": ")[2].replace("\\\n", " ").replace("\\ ", "\0")
            names = [name.replace("\0", " ").replace("\\#", "#").replace("$$", "$") for name in rule.split()]
            content, kept = file.read_bytes(), self._path(source, options)
            record = {"object": _digest(content), "includes": {name: self._digest(Path(name)) for name in names}}
            self._folder.mkdir(parents=True, exist_ok=True)
            _replace(kept, content)
            _replace(kept.with_suffix(".json"), json.dumps(record).encode())

    def forget_old(self) -> None:
        """Delete all objects but the ``_MOST_OBJECTS`` that were used last."""
        with suppress(OSError):
            for path in self._folder.glob(".*"):  # files of a compilation that was killed, or of one that ends now
                if time.time() - path.stat().st_mtime > _ABANDONED_S:
                    path.unlink(missing_ok=True)
            kept = sorted(self._folder.glob("*.o"), key=lambda path: path.stat().st_mtime, reverse=True)
            for path in kept[_MOST_OBJECTS:]:
                path.with_suffix(".json").unlink(missing_ok=True)
                path.unlink(missing_ok=True)

    def _path(self, source: Path, options: Sequence[str]) -> Path:
        made_of = json.dumps([*self._compiler, *options, str(source)]).encode()
        return self._folder / f"{_digest(made_of + source.read_bytes())[:40]}.o"

    def _digest(self, path: Path) -> str:
        if path not in self._digests:
            self._digests[path] = _digest(path.read_bytes())
        return self._digests[path]


def _digest(content: bytes) -> str:
    import hashlib  # with a library that a start which finds the kernels does without

    return hashlib.sha256(content).hexdigest()


def _replace(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(content)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _make_objects() -> None:
    """Compile the objects of both libraries, and link them into a folder that is deleted."""
    import tempfile

    if compiler := find_compiler():
        with tempfile.TemporaryDirectory() as scratch:
            build(compiler, Path(scratch) / LIBRARY)
            build_loop(compiler, Path(scratch) / LOOP_LIBRARY)


if __name__ == "__main__":
    _make_objects()
