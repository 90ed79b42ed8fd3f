"""Results of campaigns: ``results.json``, one entry per campaign and reader, and its table in docs/reports/fuzzing.md."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["DOCS", "RESULTS", "add", "code", "read", "table", "tools", "write_table"]

ROOT = Path(__file__).resolve().parents[3]
RESULTS = Path(__file__).resolve().parent / "results.json"
DOCS = ROOT / "docs" / "reports" / "fuzzing.md"
_BEGIN, _END = "<!-- results: written by the runner -->", "<!-- end of results -->"
_SOURCES = ("quantize/readers/__init__.py", "quantize/pipeline.py", "edgedec/families/*.py")
_PACKAGES = ("atheris", "numpy", "tokenizers", "gguf")

Campaign = dict[str, Any]


def code(modules: Iterable[str]) -> dict[str, Any]:
    """The commit, and a digest of what is under test, with ``modules`` of the readers: a tree may differ from its commit."""
    patterns = (*_SOURCES, *(f"quantize/readers/{name}.py" for name in modules))
    files = sorted(path for pattern in patterns for path in ROOT.glob(pattern))
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return {"commit": commit[:12] or None, "sources_sha256": digest.hexdigest()[:16]}


def tools() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def read() -> list[Campaign]:
    found: list[Campaign] = json.loads(RESULTS.read_text())["campaigns"] if RESULTS.exists() else []
    return found


def add(campaigns: Iterable[Campaign]) -> None:
    """Behind what is there."""
    lines = ",\n".join(f"  {json.dumps(one)}" for one in [*read(), *campaigns])
    RESULTS.write_text(f'{{"campaigns": [\n{lines}\n]}}\n')


def table(campaigns: Iterable[Mapping[str, Any]]) -> str:
    """Of each reader its last campaign."""
    last = {one["reader"]: one for one in campaigns}
    rows = [
        "| reader | inputs | guided | read | refused | findings | edges | features | inputs kept | CPU minutes | code |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for reader, one in last.items():
        numbers = (one[key] for key in ("inputs", "guided", "read", "refused", "findings", "edges", "features", "kept"))
        cells = " | ".join(f"{number:,}" for number in numbers)
        rows.append(f"| {reader} | {cells} | {one['cpu_seconds'] / 60:.0f} | {one['sources_sha256'][:8]} |")
    return "\n".join(rows)


def write_table() -> None:
    """Into the documentation, in the place of the one that is there."""
    text = DOCS.read_text("utf-8")
    head, _, rest = text.partition(_BEGIN)
    _, _, tail = rest.partition(_END)
    DOCS.write_text(f"{head}{_BEGIN}\n\n{table(read())}\n\n{_END}{tail}", "utf-8")
