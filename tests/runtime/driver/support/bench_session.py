"""Provide a small model, and the work of a host on a device."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.device import Device
from edgedec.graph.ops import Embed
from edgedec.hw.compiler.program import Program, compile_model
from edgedec.reference.integer_profile.model import Sequence
from edgedec.runtime.devices.replay import ReplayDevice, open_device
from edgedec.runtime.driver.driver import NO_LOGITS, WHOLE_ROWS, Driver
from edgedec.runtime.driver.recording import RecordingDevice
from edgedec.schemes import TernaryScheme
from tests.edgedec.reference.integer_profile.support.make_models import float_model, prepared
from tests.sim.support.make_small_top import CONFIG

MODEL = prepared(*float_model(TernaryScheme(), {"head_dim": 8, "attention_bias": False}))

Found = list[NDArray[np.int64]]


@cache
def program() -> Program:
    return compile_model(MODEL, CONFIG)


def embedding() -> Any:
    (embed,) = (op for op in MODEL.graph.operations if isinstance(op, Embed))
    constants: Any = MODEL.constants[embed.name]
    return constants.weight


def ids(*tokens: int) -> NDArray[np.int32]:
    return np.array(tokens, np.int32)


def prompted(*tokens: int) -> Sequence:
    """Return the integer model after these tokens."""
    model = MODEL.open()
    model.forward(
        ids(*tokens), positions=np.arange(len(tokens), dtype=np.int32), visible=np.tri(len(tokens), dtype=np.bool_)
    )
    model.commit(np.arange(len(tokens), dtype=np.int32))
    return model


def talk(device: Device) -> Found:
    """Run a prefill, whole rows, the likeliest, a tree that is partly kept, a truncation; return all integers."""
    results: Found = []
    with Driver(device, program(), embedding()) as driver:
        driver.forward(ids(7, 14, 21, 28), logits=NO_LOGITS)
        driver.commit(ids(0, 1, 2, 3))
        driver.forward(ids(5, 6), logits=WHOLE_ROWS)
        results.append(driver.logits(ids(0, 1)).values)
        driver.commit(ids(0, 1))
        positions = np.array([6, 7, 7, 8], np.int32)
        visible = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]], np.bool_)
        results.append(
            driver.forward(ids(1, 2, 3, 4), positions=positions, visible=visible).beats * np.ones(1, np.int64)
        )
        best = driver.results(ids(0, 3))
        results += [best.ids.astype(np.int64), best.logits]
        driver.commit(ids(0, 2, 3))
        driver.truncate(8)
        driver.forward(ids(9))
        results.append(driver.results(ids(0)).logits)
    return results


def same(left: Found, right: Found) -> bool:
    return len(left) == len(right) and all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


def recorded(device: Device, path: Path) -> Found:
    """Return the results of ``talk``, recorded at ``path``."""
    recorder = RecordingDevice(device, path)
    results = talk(recorder)
    recorder.close()
    return results


def replay(path: Path) -> ReplayDevice:
    return open_device(CONFIG, recording=path)
