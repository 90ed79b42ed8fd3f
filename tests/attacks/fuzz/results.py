"""Store results of campaigns: ``results.json``, one entry per campaign and reader, and its table in
docs/reports/fuzzing.md.
"""

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
    """Return the commit, and a digest of the code under test and of ``modules``, because a tree may differ from its
    commit.
    """
    patterns = (*_SOURCES, *(f"quantize/readers/{name}.py" for name in modules))
    files = sorted(path for pattern in patterns for path in ROOT.glob(pattern))
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return {"commit": commit[:12] or None, "sources_sha256": digest.hexdigest()[:16]}


def tools() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def read() -> list[Campaign]:
    campaigns: list[Campaign] = json.loads(RESULTS.read_text())["campaigns"] if RESULTS.exists() else []
    return campaigns


def add(campaigns: Iterable[Campaign]) -> None:
    """Append campaigns to the file."""
    lines = ",\n".join(f"  {json.dumps(campaign)}" for campaign in [*read(), *campaigns])
    RESULTS.write_text(f'{{"campaigns": [\n{lines}\n]}}\n')


def table(campaigns: Iterable[Mapping[str, Any]]) -> str:
    """Return a table of each reader's last campaign."""
    last = {campaign["reader"]: campaign for campaign in campaigns}
    rows = [
        "| reader | inputs | guided | read | refused | findings | edges | features | inputs kept | CPU minutes | code |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for reader, campaign in last.items():
        numbers = (
            campaign[key] for key in ("inputs", "guided", "read", "refused", "findings", "edges", "features", "kept")
        )
        cells = " | ".join(f"{number:,}" for number in numbers)
        rows.append(f"| {reader} | {cells} | {campaign['cpu_seconds'] / 60:.0f} | {campaign['sources_sha256'][:8]} |")
    return "\n".join(rows)


def write_table() -> None:
    """Replace the table in the documentation."""
    text = DOCS.read_text("utf-8")
    head, _, remainder = text.partition(_BEGIN)
    _, _, tail = remainder.partition(_END)
    DOCS.write_text(f"{head}{_BEGIN}\n\n{table(read())}\n\n{_END}{tail}", "utf-8")
