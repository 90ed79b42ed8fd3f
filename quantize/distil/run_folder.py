"""Keep the folder of a training run: its configuration, last good checkpoint, loss table and loss plot.

A run that is killed at any moment resumes from the last checkpoint and ends with the same result as an uninterrupted run.
"""

from __future__ import annotations

import csv
import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from edgedec.bundle.atomic import new_file
from edgedec.errors import BundleError, EdgedecError, UsageError

__all__ = ["RunFolder", "differences"]

_COLUMNS = ("step", "loss", "text", "valid", "rate", "tokens_per_second")


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    """Return {"a.b": 1} for {"a": {"b": 1}}, so that a difference names a single setting."""
    if not isinstance(value, dict):
        return {name: value}
    return {k: v for key, inner in value.items() for k, v in _flat(inner, f"{name}.{key}" if name else key).items()}


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Return the settings that differ, as "recipe.steps was 2, is 3; ...", or an empty string."""
    before, after = _flat(dict(old)), _flat(dict(new))
    changed = [key for key in sorted({*before, *after}) if before.get(key) != after.get(key)]
    return "; ".join(f"{key} was {before.get(key)!r}, is {after.get(key)!r}" for key in changed)


@dataclass(frozen=True, kw_only=True)
class RunFolder:
    """Folder of a run.

    It holds ``run.json`` (the settings that the result depends on), ``checkpoint.pt``, ``loss.csv``, ``loss.png`` and
    ``text-*/``.
    """

    path: Path

    @property
    def settings(self) -> Path:
        return self.path / "run.json"

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.pt"

    @property
    def losses(self) -> Path:
        return self.path / "loss.csv"

    @property
    def picture(self) -> Path:
        return self.path / "loss.png"

    def configuration(self) -> dict[str, Any]:
        """Return the configuration with which the run was begun; empty if there is no run.

        Raises:
            BundleError: ``run.json`` is damaged.
            UsageError: the path of the folder is a file.
        """
        try:
            configuration = json.loads(self.settings.read_bytes())
        except FileNotFoundError:
            return {}
        except NotADirectoryError:
            raise UsageError(f"cannot train in {self.path}: it is a file; choose another -o") from None
        except (OSError, ValueError, RecursionError):
            configuration = None
        if not isinstance(configuration, dict):
            raise BundleError(f"{self.settings} is damaged; add --restart to train from the beginning")
        return configuration

    def begin(self, configuration: Mapping[str, Any], *, restart: bool = False) -> bool:
        """Make the folder, or check that it belongs to the same run. Return whether there is a checkpoint to resume from.

        Args:
            restart: discard an existing run, except the text that was sampled for it.

        Raises:
            UsageError: the folder holds a run of another configuration (the message names the differences) or other files.
            BundleError: ``run.json`` is damaged.
        """
        settings = json.loads(json.dumps(configuration))
        if not self.settings.exists():
            if self.path.is_dir() and any(not entry.name.startswith(".") for entry in self.path.iterdir()):
                raise UsageError(
                    f"cannot train in {self.path}: it holds other files and no run.json; choose another -o"
                )
            self._write_settings(settings)
            return False
        if restart:
            for file in (self.checkpoint, self.losses, self.picture):
                file.unlink(missing_ok=True)
            self._write_settings(settings)
            return False
        changed = differences(self.configuration(), settings)
        if changed:
            raise UsageError(
                f"{self.path} holds a run with another configuration: {changed}. Give the old values to go on with it, "
                f"another -o for a new run, or --restart to discard its checkpoint"
            )
        return self.checkpoint.exists()

    def _write_settings(self, configuration: Mapping[str, Any]) -> None:
        with new_file(self.settings) as partial:
            partial.write_text(json.dumps(configuration, indent=2) + "\n", encoding="utf-8")

    def save(self, state: Mapping[str, Any]) -> None:
        """Replace the checkpoint, completely or not at all.

        Raises:
            EdgedecError: it cannot be written; the previous checkpoint is untouched.
        """
        kept = "there was no previous checkpoint, so the same command begins again"
        if self.checkpoint.exists():
            kept = "the previous checkpoint is intact, and the same command goes on from it"
        try:
            with new_file(self.checkpoint) as partial, partial.open("wb") as stream:
                try:
                    torch.save(dict(state), stream)
                except RuntimeError as error:  # torch reports the unfinished file and hides the error of the disk
                    raise error.__context__ if isinstance(error.__context__, OSError) else error from None
        except EdgedecError as error:
            raise EdgedecError(f"{error} ({kept})") from error

    def load(self) -> dict[str, Any]:
        """Load the checkpoint to the CPU.

        Raises:
            BundleError: it is damaged.
        """
        try:
            with zipfile.ZipFile(self.checkpoint) as archive:  # torch itself does not verify the checksums
                assert archive.testzip() is None
            state = torch.load(self.checkpoint, weights_only=True, map_location="cpu")
            assert isinstance(state, dict)
            assert {"model", "optimizer", "step"} <= set(state)
        except Exception as error:  # torch passes on any exception of its unpickler
            raise self.damaged() from error
        return state

    def damaged(self) -> BundleError:
        return BundleError(f"{self.checkpoint} is damaged; add --restart to train from the beginning")

    def rows(self) -> list[dict[str, str]]:
        """Return the rows of the loss table, without a line that a killed process left incomplete."""
        if not self.losses.exists():
            return []
        with self.losses.open(newline="", encoding="utf-8", errors="replace") as file:
            return [row for row in csv.DictReader(file) if _is_whole(row)]

    def keep_rows(self, until: int) -> None:
        """Drop the rows after step ``until``, the checkpoint that a run resumes from, because those steps are repeated."""
        rows = [row for row in self.rows() if float(row["step"]) <= until]
        with new_file(self.losses) as partial, partial.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, _COLUMNS)
            writer.writeheader()
            writer.writerows(rows)

    def add_row(self, row: Mapping[str, float]) -> None:
        """Append a row to the loss table.

        Raises:
            EdgedecError: the table cannot be written.
        """
        try:
            with self.losses.open("a", newline="", encoding="utf-8") as file:
                csv.DictWriter(file, _COLUMNS).writerow(row)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise EdgedecError(
                f"cannot write {self.losses}: {error.strerror}; free some space and run the same command again"
            ) from error

    def plot(self, title: str) -> None:
        """Draw the loss table as ``loss.png``."""
        from matplotlib.figure import Figure  # imported here because the import is slow and plots are rare

        rows = self.rows()
        figure = Figure(figsize=(7, 4), layout="constrained")
        axes = figure.subplots()
        steps = [float(row["step"]) for row in rows]
        marker = "." if len(rows) < 9 else ""
        for column, label in (("text", "training text"), ("valid", "held-out text")):
            axes.plot(steps, [float(row[column]) for row in rows], label=label, marker=marker)
        axes.set(xlabel="step", ylabel="cross-entropy, nats per token", title=title)
        axes.grid(alpha=0.3)
        axes.legend()
        with new_file(self.picture) as partial:
            figure.savefig(partial, format="png", dpi=120)


def _is_whole(row: Mapping[str, Any]) -> bool:
    try:
        return tuple(row) == _COLUMNS and all(float(row[key]) is not None for key in _COLUMNS)
    except (TypeError, ValueError):
        return False
