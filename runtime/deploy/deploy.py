"""Copies a board bundle to its board over ssh. Needs ssh here, and sh, tar and sha256sum there; no shell runs on this side.

On the board the bundle appears whole or not at all: it is unpacked beside its place, every file is hashed there, and then it
is renamed. What a broken connection leaves is cleared at once by the shell on the board, or else by the next run.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import shutil
import subprocess
import tarfile
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from edgedec.errors import BundleError, DeviceError, EdgedecError, ToolError, UsageError
from edgedec.progress import Progress, silent
from edgedec.runtime.accelerator.board_bundle import BoardBundle
from edgedec.runtime.accelerator.board_manifest import MANIFEST
from edgedec.runtime.deploy.board_checks import PROBE, Check, State, checked, folder_state, parse_probe, the_board

__all__ = ["RECEIVE", "Host", "Inspection", "commands", "copy", "folder_name", "inspect_board"]

_PROBE_LIMIT_S = 120.0  # importing pynq takes a board ten seconds, hashing what is there already as many
_HASH_MISMATCH, _FOREIGN = 71, 72
_UNREACHABLE = 255  # as ssh says it
_CHUNK_BYTES = 1 << 20
_MOST_SHOWN = 200  # characters of what the board said

# Runs in the board's sh, as: sh -c RECEIVE edgedec FOLDER HASHES, with a tar archive on its stdin.
RECEIVE = f"""
set -eu
umask 022
unset CDPATH
LC_ALL=C
export LC_ALL
to=$1 part=$1.part-$$ old=$1.old-$$
mkdir -p -- "$(dirname -- "$to")"
# What killed runs left; the only whole one is put back.
for left in "$to".old-* "$to".part-*; do
  run=${{left##*-}}
  case $run in ''|*[!0-9]*) continue ;; esac
  if [ ! -d "$left" ] || [ -d "/proc/$run" ]; then continue; fi
  case $left in "$to".old-*)
    [ -f "$left/{MANIFEST}" ] || continue
    [ -e "$to" ] || {{ mv -T -- "$left" "$to"; continue; }} ;;
  esac
  rm -rf -- "$left"
done
trap 'rm -rf -- "$part"' EXIT
trap 'exit 1' HUP INT TERM PIPE
mkdir -- "$part"
tar -C "$part" -xof -
(cd -- "$part" && printf '%s' "$2" | sha256sum -c - >&2) || exit {_HASH_MISMATCH}
sync
if [ -e "$to" ] || [ -L "$to" ]; then
  [ -f "$to/{MANIFEST}" ] || exit {_FOREIGN}
  mv -T -- "$to" "$old"
fi
mv -T -- "$part" "$to" || {{ [ ! -e "$old" ] || mv -T -- "$old" "$to"; exit 1; }}
rm -rf -- "$old"
"""


@dataclass(frozen=True, kw_only=True)
class Host:
    """Where the board is, as ssh takes it.

    Raises:
        UsageError: no address, one that ssh would take for an option, or a port or key that cannot be.
    """

    address: str
    port: int | None = None
    identity: Path | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"([^\s@:-][^\s@:]*@)?[^\s@-][^\s@]*", self.address) or not self.address.isprintable():
            raise UsageError(f"--host must be [user@]host, not {self.address!r}")
        if self.port is not None and not 1 <= self.port <= 65535:
            raise UsageError(f"--port must be 1 to 65535, not {self.port}")
        if self.identity is not None and not self.identity.is_file():
            raise UsageError(f"--identity {self.identity}: there is no such file; check the spelling of the path")

    def command(self, script: str, *arguments: str) -> list[str]:
        """That runs a script of sh on the board. What ssh sends is a line for a shell, so all of it is quoted."""
        options = ["-T", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=15"]
        port = [] if self.port is None else ["-p", str(self.port)]
        identity = [] if self.identity is None else ["-i", str(self.identity)]
        return [
            "ssh",
            *options,
            *port,
            *identity,
            "--",
            self.address,
            shlex.join(["sh", "-c", script, "edgedec", *arguments]),
        ]


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """``state``: of the bundle's place on the board."""

    checks: tuple[Check, ...]
    state: State

    @property
    def failed(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.status == "failed")


def folder_name(text: str | None, bundle: BoardBundle) -> str:
    """Where the bundle goes on the board: a path there, from the user's folder on if it is not absolute.

    Raises:
        UsageError: it names no folder.
    """
    text = bundle.path.resolve().name if text is None else text
    text = text.removeprefix("~/")
    path = PurePosixPath(text)
    if not text.isprintable() or path.name in ("", ".", "..") or text.startswith("~"):
        raise UsageError(f"--to must be a folder on the board, such as models/story, not {text!r}")
    return f"./{path}" if str(path).startswith("-") else str(path)


def commands(bundle: BoardBundle, host: Host, folder: str) -> tuple[tuple[str, list[str]], ...]:
    """What each of the two steps does, and the command that does it."""
    hashes = _hashes(bundle)
    return (
        ("check the board; writes nothing", host.command(PROBE, folder, hashes)),
        ("copy: a tar archive of the files to its stdin", host.command(RECEIVE, folder, hashes)),
    )


def _hashes(bundle: BoardBundle) -> str:
    """What ``sha256sum -c`` takes, of every file."""
    own = hashlib.sha256((bundle.path / MANIFEST).read_bytes()).hexdigest()
    return "".join(f"{digest}  {name}\n" for name, digest in [(MANIFEST, own), *bundle.files.items()])


def inspect_board(bundle: BoardBundle, host: Host, folder: str) -> Inspection:
    """Asks the board all that counts; writes nothing there.

    Raises:
        ToolError: there is no ssh here.
        DeviceError: the board does not answer.
        UsageError: the bundle's board runs no Linux.
    """
    the_board(bundle)
    command = commands(bundle, host, folder)[0][1]
    _need_ssh()
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=_PROBE_LIMIT_S,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        raise DeviceError(
            f"{host.address} did not answer within {_PROBE_LIMIT_S:.0f} s; log in by ssh and see what it is busy with"
        ) from None
    if done.returncode == _UNREACHABLE:
        raise _unreachable(host, done.stderr)
    found = parse_probe(done.stdout)
    if "state" not in found:
        raise DeviceError(f"{host.address} runs no such check: {_last(done.stderr)}; is this a board with Linux?")
    return Inspection(checks=checked(bundle, found, folder=folder), state=folder_state(found))


def copy(bundle: BoardBundle, host: Host, folder: str, *, progress: Progress = silent) -> None:
    """Copies the bundle, whatever is there; a board bundle in its place is replaced.

    Raises:
        ToolError: there is no ssh here.
        DeviceError: the connection broke; nothing is there but what was.
        EdgedecError: the board's disk is full, or something arrived otherwise than it was sent; likewise.
    """
    command = commands(bundle, host, folder)[1][1]
    _need_ssh()
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said)
        assert process.stdin is not None
        try:
            with suppress(BrokenPipeError):  # the other side gave up, and says why
                _send(bundle, process.stdin, progress)
                process.stdin.close()
            code = process.wait()
        finally:
            with suppress(BrokenPipeError):
                process.stdin.close()
            if process.poll() is None:  # interrupted here: the archive has no end, so nothing is renamed there
                process.terminate()
                process.wait()
        said.seek(0)
        text = said.read().decode(errors="replace")
    if code:
        raise _failure(host, folder, code, text)


def _need_ssh() -> None:
    if shutil.which("ssh") is None:
        raise ToolError("there is no ssh on this machine; Debian or Ubuntu: sudo apt install openssh-client")


def _send(bundle: BoardBundle, stream: IO[bytes], progress: Progress) -> None:
    """The files as a tar archive; one that is cut short has no end, and tar says so."""
    names = [MANIFEST, *bundle.files]
    total, sent = sum((bundle.path / name).stat().st_size for name in names), 0
    for name in names:
        file = bundle.path / name
        entry = tarfile.TarInfo(name)
        entry.size = left = file.stat().st_size
        stream.write(entry.tobuf(tarfile.PAX_FORMAT))
        with file.open("rb") as opened:
            while left:
                progress(name, sent, total)
                data = opened.read(min(left, _CHUNK_BYTES))
                if not data:
                    raise BundleError(f"{file}: became shorter while it was read; leave it alone and run again")
                stream.write(data)
                left, sent = left - len(data), sent + len(data)
        stream.write(bytes(-entry.size % tarfile.BLOCKSIZE))
    stream.write(bytes(2 * tarfile.BLOCKSIZE))
    progress("checking", total, total)


def _last(text: str) -> str:
    """The last line that says something, safe to print."""
    lines = [shown for line in text.splitlines() if (shown := "".join(filter(str.isprintable, line)).strip())]
    return lines[-1][:_MOST_SHOWN] if lines else "it said nothing"


def _unreachable(host: Host, text: str) -> DeviceError:
    login = shlex.join([word for word in host.command("")[:-1] if word not in ("-T", "--")])
    return DeviceError(f"{host.address} cannot be reached by ssh: {_last(text)}; see what this says: {login} true")


def _failure(host: Host, folder: str, code: int, text: str) -> EdgedecError:
    where = f"{host.address}:{folder}"
    if code == _UNREACHABLE:
        return DeviceError(f"{where}: the connection broke: {_last(text)}; nothing was changed there, run again")
    if "No space left" in text or "Disk quota" in text:
        return EdgedecError(
            f"{where}: the board's disk is full; nothing was changed there: free some space and run again"
        )
    if code == _HASH_MISMATCH:
        wrong = [line.rpartition(":")[0] for line in text.splitlines() if line.endswith(": FAILED")]
        return EdgedecError(
            f"{where}: {', '.join(wrong) or 'a file'} arrived otherwise than sent; nothing was changed there: run again, "
            "and look at the board's disk if that does not help"
        )
    if code == _FOREIGN:
        return DeviceError(f"{where} exists and holds no {MANIFEST}; give another --to, or remove it")
    return DeviceError(f"{where}: {_last(text)}; nothing was changed there, mend that and run again")
