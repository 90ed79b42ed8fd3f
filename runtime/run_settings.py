"""The settings of a run: everything that a plan, a session and a target are made from, beside the model.

A new setting is one field here, its line in ``RunKeywords``, its option of the same name on the command line
(``edgedec/cli/run_options.py``), and its use. ``tests/runtime/test_run_settings.py`` adds one so.

``edgedec.api`` imports this module, so that it takes no NumPy and no target before settings are made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from edgedec.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    from edgedec.runtime.accelerator.options import AcceleratorOptions
    from edgedec.runtime.planning.speculation import SpecConfig
    from edgedec.runtime.protocols import Limits
    from edgedec.runtime.row_recipe import RowRecipe
    from edgedec.runtime.target_request import TargetRequest

__all__ = ["RunKeywords", "RunSettings"]


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """The settings of a run.

    Members:
        device: a value of ``--device``.
        threads: number of CPU threads; 0 leaves it to the target.
        ctx_size: size of the context in tokens; 0 chooses the largest that fits, at most the model's and at most 2048.
        kv_bits: bits of keys and values; None chooses the target's default, or fewer bits under a budget, see
            ``automatic_bits``.
        kv_policy: policy of keys and values, which texts depend on: "full", or the kind that the bundle must have; "auto"
            takes the bundle's only if that leaves room for more context than "full"; None: the bundle's, if it has one.
        value_rows: rows of values of each key/value head that memory has, if the policy lets values lie in a file; None:
            twice the keys that a query attends to. No text depends on it.
        spec: settings of speculation; None: no speculation. Under a budget, trees may be smaller than these settings, and
            ``auto`` may go without a draft model or without speculation.
        budget_bytes: maximum memory of the model in bytes; None: no limit.
        sequences: number of texts that can be written at a time.
        beside: bytes of what the program keeps beside the model, by part; None: nothing.
        accelerator: the accelerator, if the device is one; None: the default one.
        embeddings: let ``Session.embed`` return embeddings, whose rows the plan then has.

    Raises:
        UsageError: a value is out of range, or no policy has the name ``kv_policy``. What depends on the model, such as the
            largest context, is checked when the run is planned.
        UnsupportedError: ``budget_bytes`` is given for a GPU.

    Example:
        >>> RunSettings(ctx_size=512, sequences=4).sequences
        4
        >>> RunSettings(device="webgpu", budget_bytes=1 << 30)
        Traceback (most recent call last):
        edgedec.errors.UnsupportedError: a memory budget cannot be kept on webgpu: ...
    """

    device: str = "cpu"
    threads: int = 0
    ctx_size: int = 0
    kv_bits: int | None = None
    kv_policy: str | None = None
    value_rows: int | None = None
    spec: SpecConfig | None = None
    budget_bytes: int | None = None
    sequences: int = 1
    beside: Mapping[str, int] | None = None
    accelerator: AcceleratorOptions | None = None
    embeddings: bool = False

    def __post_init__(self) -> None:
        from edgedec.calibrated_bundle import check_policy_name
        from edgedec.graph.selection import MOST_KEYS
        from edgedec.memory.byte_sizes import check_budget_bytes
        from edgedec.memory.items import check_beside
        from edgedec.runtime.run_sizes import MOST_ROWS
        from edgedec.runtime.targets import GPU_DEVICES

        check_budget_bytes(self.budget_bytes)
        check_policy_name(self.kv_policy)
        check_beside(self.beside or ())
        if self.value_rows is not None and not 0 <= self.value_rows <= MOST_KEYS:
            raise UsageError(f"--value-rows must be 0 to {MOST_KEYS}, not {self.value_rows}")
        if self.budget_bytes is not None and self.device in GPU_DEVICES:
            raise UnsupportedError(
                f"a memory budget cannot be kept on {self.device}: the driver's own memory is not known beforehand; "
                "leave --memory-budget out, or use --device cpu"
            )
        if not 1 <= self.sequences <= MOST_ROWS:
            raise UsageError(f"sequences must be 1 to {MOST_ROWS}, the rows of a pass, not {self.sequences}")

    def target_request(
        self,
        limits: Limits,
        *,
        kv_bits: int,
        taps: tuple[str, ...] = (),
        recipe: RowRecipe | None = None,
        result_rows: int | None = None,
    ) -> TargetRequest:
        """Return the request for the target of a planned run, which has chosen the limits, the bits and the decoder."""
        from edgedec.runtime.row_recipe import CAUSAL
        from edgedec.runtime.target_request import TargetRequest

        return TargetRequest(
            limits=limits,
            device=self.device,
            threads=self.threads,
            kv_bits=kv_bits,
            taps=taps,
            recipe=recipe or CAUSAL,
            result_rows=result_rows,
            sequences=self.sequences,
        )


class RunKeywords(TypedDict, total=False):
    """The members of ``RunSettings`` as keyword arguments, for the functions of the Python API."""

    device: str
    threads: int
    ctx_size: int
    kv_bits: int | None
    kv_policy: str | None
    value_rows: int | None
    spec: SpecConfig | None
    budget_bytes: int | None
    sequences: int
    beside: Mapping[str, int] | None
    accelerator: AcceleratorOptions | None
    embeddings: bool
