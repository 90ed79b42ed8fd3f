"""ONNX Runtime, imported with its telemetry switched off. No other module of the project imports it.

It is an extra, because the CPU kernels run most models without it. If it is not installed, an import of this module raises
a ToolError that says how to install it.

From 1.29 on ONNX Runtime writes a device identifier and a database of events under the user's cache folder, and sends the
events. It decides this while it is loaded, so ``ORT_DISABLE_TELEMETRY`` is set before the import.
``EDGEDEC_ORT_TELEMETRY=1`` leaves the decision to ONNX Runtime. If a program has imported it earlier, only the events that
are not essential can still be stopped; docs/installing.md describes the rest.

Source: onnxruntime ``docs/Privacy.md`` and its pull request 27379.
"""

from __future__ import annotations

import os

from edgedec.environment import ORT_TELEMETRY
from edgedec.host.install_hint import check_installed

__all__ = ["ALLOWED", "onnxruntime"]

# The setting is an environment variable so that child processes inherit it.
ALLOWED = ORT_TELEMETRY.is_on()
if not ALLOWED:
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    os.environ["ORT_GENAI_TELEMETRY_DISABLED"] = "1"  # onnxruntime-genai, which the benchmarks compare with

# The user of the package. If no model can run without it, runtime/targets/onnx.py has said so before.
_USER = "a model with float matrices of more than 64 rows, like every model with EDGEDEC_FUSED=0,"
check_installed("onnxruntime", extra="onnx", user=_USER)

import onnxruntime  # noqa: E402  imported after the variables are set

if not ALLOWED:
    onnxruntime.disable_telemetry_events()
