"""``edgedec deploy``: check a board bundle and a board, and copy the bundle to the board."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgedec.cli.console import print_json, progress
from edgedec.cli.options import Json, Verbose, option, resolve_model
from edgedec.errors import DeviceError, UsageError

if TYPE_CHECKING:
    from edgedec.runtime.accelerator.board_bundle import BoardBundle
    from edgedec.runtime.deploy.deploy import Inspection, SshHost

__all__ = ["deploy"]

_MARKS = {"ok": "ok      ", "note": "note    ", "failed": "FAILED  "}


def deploy(
    board_bundle: Annotated[str, typer.Argument(metavar="BOARD_BUNDLE", help="Folder of the board bundle.")],
    host: Annotated[str, option("--host", metavar="[USER@]HOST", help="Address of the board for ssh.")] = "",
    port: Annotated[int | None, option("--port", metavar="N", help="Port of the board's ssh.")] = None,
    identity: Annotated[Path | None, option("--identity", metavar="FILE", help="Private key for ssh.")] = None,
    to: Annotated[
        str | None,
        option(
            "--to",
            metavar="FOLDER",
            help="Folder on the board, relative to the user's folder; default: the bundle's name.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, option("--dry-run", help="Check the bundle and print the commands, but run none of them.")
    ] = False,
    json: Json = False,
    verbose: Verbose = 0,
) -> None:
    """Check a board bundle and a board, and copy the bundle to the board by ssh.

    If the board has this bundle already, nothing is copied. The exit code is 3 if the board is not ready.
    """
    from edgedec.runtime.accelerator.board_bundle import open_board_bundle
    from edgedec.runtime.deploy.board_checks import linux_board
    from edgedec.runtime.deploy.deploy import SshHost, copy, folder_name, inspect_board

    if not host:
        raise UsageError("name the board with --host [USER@]HOST")
    target = SshHost(address=host, port=port, identity=identity)
    path = resolve_model(board_bundle)
    with progress("checking the bundle") as report:
        report(path.name, 0, 1)
        bundle = open_board_bundle(path)
    linux_board(bundle)
    folder = folder_name(to, bundle)
    data = _describe(bundle, target, folder, dry_run)
    if dry_run:
        _print_dry_run(data, bundle, target, folder, json=json)
        return
    with progress("checking the board") as report:
        report(host, 0, 1)
        inspection = inspect_board(bundle, target, folder)
    data |= {"state": inspection.state, "checks": [asdict(check) for check in inspection.checks], "copied": False}
    if not json:
        _print_checks(inspection)
    if inspection.failed:
        if json:
            print_json(data)
        names = ", ".join(check.name for check in inspection.failed)
        raise DeviceError(f"{host} is not ready: {names}; nothing was copied, the lines above name the next steps")
    if inspection.state != "same":
        with progress("copying") as report:
            copy(bundle, target, folder, progress=report)
        data["copied"] = True
    if json:
        print_json(data)
        return
    print(
        f"{host}:{folder} {'has the bundle now' if data['copied'] else 'has the bundle already'}; run on the board, as root:"
    )
    print(f"  edgedec chat --device pynq -m {shlex.quote(folder)}")


def _describe(bundle: BoardBundle, target: SshHost, folder: str, dry_run: bool) -> dict[str, Any]:
    return {
        "host": target.address,
        "folder": folder,
        "dry_run": dry_run,
        "board": bundle.board,
        "configuration": f"{bundle.config.hash:016x}",
        "sha256": bundle.sha256,
        "bundle": bundle.bundle,
        "bytes": sum((bundle.path / name).stat().st_size for name in bundle.files),
        "files": dict(bundle.files),
    }


def _print_checks(inspection: Inspection) -> None:
    for check in inspection.checks:
        print(f"{_MARKS[check.status]}{check.name}: {check.detail}")
        if check.fix:
            print(f"          {check.fix}")


def _print_dry_run(data: dict[str, Any], bundle: BoardBundle, target: SshHost, folder: str, *, json: bool) -> None:
    from edgedec.memory.byte_sizes import format_bytes
    from edgedec.runtime.deploy.deploy import commands

    steps = [{"what": what, "command": command} for what, command in commands(bundle, target, folder)]
    if json:
        print_json(data | {"commands": steps})
        return
    print(
        f"{bundle.path}: valid; for {bundle.board}, configuration {data['configuration']}, {format_bytes(data['bytes'])}"
    )
    print(f"would be checked: processor, name, Python, pynq, edgedec, contiguous memory and disk of {target.address}")
    print(f"would be copied to {target.address}:{folder}, hashed there and renamed; not if it is there already:")
    for name in ("board.json", *bundle.files):
        print(f"  {name}")
    for step in steps:
        print(f"\n# {step['what']}\n{shlex.join(step['command'])}")
