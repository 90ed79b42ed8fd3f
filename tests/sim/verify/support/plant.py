"""Plant a fault in the source of a component, for proofs that must fail then."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

__all__ = ["planted"]


def planted(component: type, old: str, new: str) -> Any:
    """Return a class whose module's source differs in one place."""
    path = Path(str(sys.modules[component.__module__].__file__))
    text = path.read_text("utf-8")
    assert text.count(old) == 1, f"{path} has {old!r} {text.count(old)} times"
    spec = importlib.util.spec_from_loader("planted", loader=None)
    assert spec
    module = importlib.util.module_from_spec(spec)
    module.__package__ = component.__module__.rpartition(".")[0]
    exec(compile(text.replace(old, new), str(path), "exec"), vars(module))
    return getattr(module, component.__name__)
