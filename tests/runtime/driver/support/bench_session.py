"""A small model, and what a host does with it on a device."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.device import Device
from edgedec.hw.compiler.program import Program, compile_model
from edgedec.ops import Embed
from edgedec.reference.integer_profile.model import Sequence
from edgedec.runtime.devices.replay import ReplayDevice, open_device
from edgedec.runtime.driver.driver import NO_LOGITS, WHOLE_ROWS, Driver
from edgedec.runtime.driver.recording import Recorder
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


def ids(*given: int) -> NDArray[np.int32]:
    return np.array(given, np.int32)


def prompted(*given: int) -> Sequence:
    """The integer model behind these tokens."""
    model = MODEL.open()
    model.forward(
        ids(*given), positions=np.arange(len(given), dtype=np.int32), visible=np.tri(len(given), dtype=np.bool_)
    )
    model.commit(np.arange(len(given), dtype=np.int32))
    return model


def talk(device: Device) -> Found:
    """Prefill, whole rows, the best, a tree of which a part is kept, a way back: all the integers that came."""
    found: Found = []
    with Driver(device, program(), embedding()) as driver:
        driver.forward(ids(7, 14, 21, 28), logits=NO_LOGITS)
        driver.commit(ids(0, 1, 2, 3))
        driver.forward(ids(5, 6), logits=WHOLE_ROWS)
        found.append(driver.logits(ids(0, 1)).values)
        driver.commit(ids(0, 1))
        positions = np.array([6, 7, 7, 8], np.int32)
        visible = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]], np.bool_)
        found.append(driver.forward(ids(1, 2, 3, 4), positions=positions, visible=visible).beats * np.ones(1, np.int64))
        best = driver.results(ids(0, 3))
        found += [best.ids.astype(np.int64), best.logits]
        driver.commit(ids(0, 2, 3))
        driver.truncate(8)
        driver.forward(ids(9))
        found.append(driver.results(ids(0)).logits)
    return found


def same(left: Found, right: Found) -> bool:
    return len(left) == len(right) and all(np.array_equal(one, other) for one, other in zip(left, right, strict=True))


def recorded(device: Device, path: Path) -> Found:
    """What ``talk`` gives, with its recording at ``path``."""
    recorder = Recorder(device, path)
    found = talk(recorder)
    recorder.close()
    return found


def replay(path: Path) -> ReplayDevice:
    return open_device(CONFIG, recording=path)
