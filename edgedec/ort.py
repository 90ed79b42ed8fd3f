"""ONNX Runtime, imported with its telemetry switched off. No other module of the project imports it.

From 1.29 on ONNX Runtime writes a device identifier and a database of events under the user's cache folder, and sends the
events. It decides while it is loaded, so ``ORT_DISABLE_TELEMETRY`` is set before the import. ``EDGEDEC_ORT_TELEMETRY=1``
leaves the decision to ONNX Runtime. A program that imported it earlier has loaded it its own way; all that can be done
then is to stop the events that are not essential. docs/privacy.md says what that leaves.

Source: onnxruntime ``docs/Privacy.md`` and its pull request 27379.
"""

from __future__ import annotations

import os

from edgedec.environment import ORT_TELEMETRY

__all__ = ["ALLOWED", "onnxruntime"]

# The environment is where processes that this one starts inherit it from.
ALLOWED = ORT_TELEMETRY.is_on()
if not ALLOWED:
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    os.environ["ORT_GENAI_TELEMETRY_DISABLED"] = "1"  # onnxruntime-genai, which the benchmarks compare with

import onnxruntime  # noqa: E402  the switch comes first

if not ALLOWED:
    onnxruntime.disable_telemetry_events()
