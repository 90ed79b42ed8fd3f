"""The report of a run of llama.cpp's tests of its server, as a page of the documentation."""

from __future__ import annotations

import datetime
import re
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

__all__ = ["REPORT", "SOURCES", "report_text", "suite_version"]

ROOT = Path(__file__).resolve().parents[2]
REPORT = ROOT / "docs" / "reports" / "llama-server-tests.md"
# Folders on which the outcome depends: the server, what it writes with, and what starts the tests.
SOURCES = ("runtime/server", "runtime/grammar", "runtime/text", "edgedec/cli", "tests/peers")
_UPDATE = re.compile(r"update llama\.cpp to ggml-org/llama\.cpp@(\w+)")


_PAGE = """# Report: llama.cpp's tests of its server

llama.cpp tests its server with a suite of its own, `tools/server/tests`. The parts of it that apply run against
`edgedec serve`:

    .venv/bin/python -m tests.peers.llama_server_tests                # loads llama.cpp's sources on first use
    .venv/bin/python -m tests.peers.llama_server_tests --tests DIR    # DIR is tools/server/tests of other sources
    .venv/bin/python -m tests.peers.llama_server_tests --listed test_metrics
    LLAMA_SERVER_TESTS=DIR .venv/bin/pytest -m nightly tests/peers       # in the third ring, without writing this page

The first two commands write this page; do not edit it. It is about these sources:

| | |
|---|---|
{table}

{failures}What has changed since then is said by

    {changes}

Nothing of the suite is in the project. `tests/peers/llama_server.py` starts edgedec with llama-server's options: an
option that has a counterpart is translated, one without is ignored or refused by name. The embedded model stands in for
the small models that the tests load from a hub, with the chat template `chatml`, which llama-server takes for them
because they have none; other templates are those of the suite's sources (`models/templates`). Where a test starts its
server with `--verbose`, its requests ask for `__verbose` instead. The tests that do not apply are listed with their
reason in `tests/peers/llama_server_tests.toml`. All others must pass, and the command fails otherwise. `--listed` runs the
tests of the list instead, and names those that pass and need no entry any more.

| reason why tests do not apply | tests |
|---|---:|
{rows}
"""


class _Outcome(Protocol):
    @property
    def passed(self) -> Sequence[str]: ...
    @property
    def failed(self) -> Sequence[str]: ...
    @property
    def skipped(self) -> Sequence[str]: ...
    @property
    def listed(self) -> Mapping[str, str]: ...


def suite_version(suite: Path) -> str:
    """Return the commit of llama.cpp that a suite belongs to, and where it comes from, as far as its folder tells.

    The sdist of llama-cpp-python, in which llama.cpp is ``vendor/llama.cpp``, names the commit in its change log. A
    repository tells its own commit and its date.
    """
    source = suite.parent.parent.parent
    sdist = source.parent.parent
    if (sdist / "PKG-INFO").exists():
        about, changes = ((sdist / name).read_text("utf-8") for name in ("PKG-INFO", "CHANGELOG.md"))
        release = re.search(r"^Version: (\S+)", about, re.MULTILINE)
        commit = _UPDATE.search(changes)
        return f"commit {_first(commit)}, in llama-cpp-python {_first(release)}"
    found = _git(source, "log", "-1", "--format=%h of %cs") if (source / ".git").exists() else ""
    return f"commit {found}" if found else "of an unknown commit"


def _first(match: re.Match[str] | None) -> str:
    return "unknown" if match is None else match[1]


def report_text(outcome: _Outcome, version: str) -> str:
    """Return the page about a run of all tests that apply of the suite of a ``version``."""
    commit = _git(ROOT, "rev-parse", "--short=10", "HEAD")
    is_changed = bool(_git(ROOT, "status", "--porcelain", "--", *SOURCES))
    reasons = Counter(outcome.listed.values())
    ran = len(outcome.passed) + len(outcome.failed) + len(outcome.skipped)
    counted = sorted(reasons.items(), key=lambda item: (-item[1], item))
    rows = "\n".join(f"| {reason} | {count} |" for reason, count in counted)
    facts = {
        "edgedec": f"commit {commit}{', with changes that were not committed' if is_changed else ''}",
        "llama.cpp": version,
        "day": datetime.date.today().isoformat(),
        "tests of the suite, without its slow ones": ran + len(outcome.listed),
        "passed": len(outcome.passed),
        "failed": len(outcome.failed),
        "skipped by the suite itself": len(outcome.skipped),
        "do not apply": len(outcome.listed),
    }
    table = "\n".join(f"| {name} | {value} |" for name, value in facts.items())
    failures = "".join(f"- failed: `{name}`\n" for name in outcome.failed)
    changes = f"git diff --stat {commit} -- {' '.join(SOURCES)}"
    return _PAGE.format(table=table, failures=failures and f"{failures}\n", changes=changes, rows=rows)


def _git(folder: Path, *arguments: str) -> str:
    """Return the output of git in a folder; empty if it fails."""
    try:
        run = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return run.stdout.strip() if run.returncode == 0 else ""
