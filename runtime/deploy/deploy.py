"""Copy of a board bundle to its board over ssh.

It needs ssh on this machine, and sh, tar and sha256sum on the board; no shell runs on this machine. On the board the bundle
appears completely or not at all: it is unpacked next to its folder, every file is hashed, and then it is renamed. Files that
a broken connection leaves are removed by the shell on the board, or by the next run.
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
from edgedec.runtime.deploy.board_checks import (
    PROBE,
    BoardCheck,
    State,
    check_board,
    folder_state,
    linux_board,
    parse_probe,
)

__all__ = ["RECEIVE", "Inspection", "SshHost", "commands", "copy", "folder_name", "inspect_board"]

_PROBE_LIMIT_S = 120.0  # seconds for PROBE; a board takes ten to import pynq, and as many to hash an existing bundle
_HASH_MISMATCH, _FOREIGN = 71, 72  # exit statuses of RECEIVE
_UNREACHABLE = 255  # exit status of ssh without a connection
_CHUNK_BYTES = 1 << 20  # bytes that are read and sent at a time
_MOST_SHOWN = 200  # characters of the board's output in an error message

# Script for the board's sh, called as: sh -c RECEIVE edgedec FOLDER HASHES, with a tar archive on its stdin.
RECEIVE = f"""
set -eu
umask 022
unset CDPATH
LC_ALL=C
export LC_ALL
to=$1 part=$1.part-$$ old=$1.old-$$
mkdir -p -- "$(dirname -- "$to")"
# Remove the folders of killed runs. A complete old bundle is moved back if there is no other.
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


def _elsewhere(address: str) -> str:
    """Return the end of a message about an address that holds more than ``--host`` takes."""
    return "; a port goes to --port, and a folder to --to" if set(":/") & set(address) else ""


@dataclass(frozen=True, kw_only=True)
class SshHost:
    """The address of a board for ssh.

    Members:
        address: [user@]host.
        port: TCP port; None: ssh's default.
        identity: file of the private key; None: ssh's default.

    Raises:
        UsageError: the address is empty or could be taken for an option, the port is out of range, or the key does not
            exist.
    """

    address: str
    port: int | None = None
    identity: Path | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"([^\s@:-][^\s@:]*@)?[^\s@/-][^\s@/]*", self.address) or not self.address.isprintable():
            raise UsageError(f"--host must be [user@]host, not {self.address!r}{_elsewhere(self.address)}")
        if self.address.rpartition("@")[2].count(":") == 1:  # an address of IPv6 has more of them
            raise UsageError(f"--host must be [user@]host, not {self.address!r}{_elsewhere(self.address)}")
        if self.port is not None and not 1 <= self.port <= 65535:
            raise UsageError(f"--port must be 1 to 65535, not {self.port}")
        if self.identity is not None and not self.identity.is_file():
            reason = "is not a file" if self.identity.exists() else "there is no such file"
            raise UsageError(f"--identity {self.identity}: {reason}; give the file of a private key")

    def command(self, script: str, *arguments: str) -> list[str]:
        """Return the command that runs a script in the board's sh.

        ssh sends the command as a line for a shell, so all words of it are quoted.
        """
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
    """The checks of a board, and the state of the bundle's folder on it."""

    checks: tuple[BoardCheck, ...]
    state: State

    @property
    def failed(self) -> tuple[BoardCheck, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if check.status == "failed")


def folder_name(text: str | None, bundle: BoardBundle) -> str:
    """Return the bundle's folder on the board: ``text`` or the bundle's own name, relative to the user's home folder.

    Raises:
        UsageError: ``text`` does not name a folder.
    """
    text = bundle.path.resolve().name if text is None else text
    text = text.removeprefix("~/")
    path = PurePosixPath(text)
    if not text.isprintable() or path.name in ("", ".", "..") or text.startswith("~"):
        raise UsageError(f"--to must be a folder on the board, such as models/story, not {text!r}")
    return f"./{path}" if str(path).startswith("-") else str(path)


def commands(bundle: BoardBundle, host: SshHost, folder: str) -> tuple[tuple[str, list[str]], ...]:
    """Return the description and the command of each of the two steps of a deployment."""
    hashes = _hashes(bundle)
    return (
        ("check the board; writes nothing", host.command(PROBE, folder, hashes)),
        ("copy: a tar archive of the files to its stdin", host.command(RECEIVE, folder, hashes)),
    )


def _hashes(bundle: BoardBundle) -> str:
    """Return the hashes of all files in the format of ``sha256sum -c``."""
    own = hashlib.sha256((bundle.path / MANIFEST).read_bytes()).hexdigest()
    return "".join(f"{digest}  {name}\n" for name, digest in [(MANIFEST, own), *bundle.files.items()])


def inspect_board(bundle: BoardBundle, host: SshHost, folder: str) -> Inspection:
    """Check the board for a deployment, without writing anything to it.

    Raises:
        ToolError: ssh is not installed on this machine.
        DeviceError: the board does not answer.
        UsageError: the bundle's board runs no Linux.
    """
    linux_board(bundle)
    command = commands(bundle, host, folder)[0][1]
    _need_ssh()
    try:
        process = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=_PROBE_LIMIT_S,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        raise DeviceError(
            f"{host.address} did not answer within {_PROBE_LIMIT_S:.0f} s; log in by ssh and check what it is busy with"
        ) from None
    if process.returncode == _UNREACHABLE:
        raise _unreachable(host, process.stderr)
    values = parse_probe(process.stdout)
    if "state" not in values:
        raise DeviceError(f"{host.address} cannot run the check: {_last(process.stderr)}; is this a board with Linux?")
    return Inspection(checks=check_board(bundle, values, folder=folder), state=folder_state(values))


def copy(bundle: BoardBundle, host: SshHost, folder: str, *, progress: Progress = silent) -> None:
    """Copy the bundle to the board. A board bundle that is there already is replaced.

    Raises:
        ToolError: ssh is not installed on this machine.
        DeviceError: the connection broke, or the folder has other contents; nothing was changed on the board.
        EdgedecError: the board's disk is full, or a file was damaged on the way; nothing was changed on the board.
    """
    command = commands(bundle, host, folder)[1][1]
    _need_ssh()
    with tempfile.TemporaryFile() as stderr:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=stderr)
        assert process.stdin is not None
        try:
            with suppress(BrokenPipeError):  # the other side ended; its exit status and stderr tell why
                _send(bundle, process.stdin, progress)
                process.stdin.close()
            code = process.wait()
        finally:
            with suppress(BrokenPipeError):
                process.stdin.close()
            if process.poll() is None:  # after an interrupt the archive is incomplete, so the board renames nothing
                process.terminate()
                process.wait()
        stderr.seek(0)
        text = stderr.read().decode(errors="replace")
    if code:
        raise _failure(host, folder, code, text)


def _need_ssh() -> None:
    if shutil.which("ssh") is None:
        raise ToolError("there is no ssh on this machine; Debian or Ubuntu: sudo apt install openssh-client")


def _send(bundle: BoardBundle, stream: IO[bytes], progress: Progress) -> None:
    """Write the files to ``stream`` as a tar archive. If it breaks off, tar reports the missing end."""
    names = [MANIFEST, *bundle.files]
    total, sent = sum((bundle.path / name).stat().st_size for name in names), 0
    for name in names:
        file = bundle.path / name
        entry = tarfile.TarInfo(name)
        entry.size = left = file.stat().st_size
        stream.write(entry.tobuf(tarfile.PAX_FORMAT))
        with file.open("rb") as source:
            while left:
                progress(name, sent, total)
                data = source.read(min(left, _CHUNK_BYTES))
                if not data:
                    raise BundleError(f"{file}: became shorter while it was read; do not change it, and run again")
                stream.write(data)
                left, sent = left - len(data), sent + len(data)
        stream.write(bytes(-entry.size % tarfile.BLOCKSIZE))
    stream.write(bytes(2 * tarfile.BLOCKSIZE))
    progress("checking", total, total)


def _last(text: str) -> str:
    """Return the last line that is not empty, without characters that are unsafe to print."""
    lines = [shown for line in text.splitlines() if (shown := "".join(filter(str.isprintable, line)).strip())]
    return lines[-1][:_MOST_SHOWN] if lines else "there is no error message"


def _unreachable(host: SshHost, text: str) -> DeviceError:
    login = shlex.join([word for word in host.command("")[:-1] if word not in ("-T", "--")])
    return DeviceError(f"{host.address} cannot be reached by ssh: {_last(text)}; for more, run: {login} true")


def _failure(host: SshHost, folder: str, code: int, text: str) -> EdgedecError:
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
            f"{where}: {', '.join(wrong) or 'a file'} was damaged on the way; nothing was changed there: run again, and "
            "check the board's disk if that does not help"
        )
    if code == _FOREIGN:
        return DeviceError(f"{where} exists and has no {MANIFEST}; give another --to, or remove it")
    return DeviceError(f"{where}: {_last(text)}; nothing was changed there: correct the cause and run again")
