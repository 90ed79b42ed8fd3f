"""edgedec: quantize a language model, generate its accelerator, decode within a memory budget.

The names of ``__all__`` are the Python API, which docs/python-api.md describes. Each is imported from its module when it is
first used, so that ``import edgedec`` itself loads nothing.
"""

from __future__ import annotations

TYPE_CHECKING = (
    False  # true for type checkers and editors; importing it from typing would take most of the import's time
)
if TYPE_CHECKING:
    from edgedec.api import plan_run, quantize_checkpoint
    from edgedec.bundle.bundle import Bundle
    from edgedec.errors import (
        BudgetError,
        BundleError,
        DeviceError,
        EdgedecError,
        ToolError,
        UnsupportedError,
        UsageError,
    )
    from edgedec.memory.plan import Plan
    from edgedec.runtime.grammar.grammar import Grammar
    from edgedec.runtime.grammar.reasoning import Reasoning
    from edgedec.runtime.planning.speculation import SpecConfig
    from edgedec.runtime.sampling.sampling import SamplingConfig
    from edgedec.runtime.session.answer import Answer, AnswerStream, Piece, Timings
    from edgedec.runtime.session.session import Session

__all__ = [
    "Answer",
    "AnswerStream",
    "BudgetError",
    "Bundle",
    "BundleError",
    "DeviceError",
    "EdgedecError",
    "Grammar",
    "Piece",
    "Plan",
    "Reasoning",
    "SamplingConfig",
    "Session",
    "SpecConfig",
    "Timings",
    "ToolError",
    "UnsupportedError",
    "UsageError",
    "__version__",
    "plan_run",
    "quantize_checkpoint",
]

__version__ = "0.1.0"

# Module below edgedec -> the public names that it defines. tests/test_python_api.py compares it with the imports above.
_DEFINED_IN = {
    "api": ("plan_run", "quantize_checkpoint"),
    "bundle.bundle": ("Bundle",),
    "errors": (
        "BudgetError",
        "BundleError",
        "DeviceError",
        "EdgedecError",
        "ToolError",
        "UnsupportedError",
        "UsageError",
    ),
    "memory.plan": ("Plan",),
    "runtime.session.answer": ("Answer", "AnswerStream", "Piece", "Timings"),
    "runtime.grammar.grammar": ("Grammar",),
    "runtime.grammar.reasoning": ("Reasoning",),
    "runtime.sampling.sampling": ("SamplingConfig",),
    "runtime.session.session": ("Session",),
    "runtime.planning.speculation": ("SpecConfig",),
}


if not TYPE_CHECKING:  # a type checker that saw it would take any name for one of ours

    def __getattr__(name: str) -> object:
        """Import a public name from the module that defines it, and keep it."""
        from importlib import import_module

        for module, names in _DEFINED_IN.items():
            if name in names:
                value = getattr(import_module(f"edgedec.{module}"), name)
                globals()[name] = value
                return value
        raise AttributeError(f"module 'edgedec' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
