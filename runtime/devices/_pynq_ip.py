"""The accelerator's driver class for pynq, which pynq binds by the block's name in the hand-off file. It needs pynq."""

from __future__ import annotations

import logging
from typing import Any

import pynq

from edgedec.hw.isa.ip_core import INTERRUPT, VLNV

__all__ = ["AcceleratorIP"]

_LOG = logging.getLogger(__name__)


class AcceleratorIP(pynq.DefaultIP):
    """The accelerator in an overlay.

    Its registers are in ``mmio``. ``accelerator_interrupt`` is a pynq.Interrupt; None if the design has no interrupt or the
    system cannot deliver it.
    """

    bindto = [VLNV]  # noqa: RUF012  pynq requires a list

    def __init__(self, description: dict[str, Any]) -> None:
        try:
            super().__init__(description)
        except OSError as error:  # the kernel has no user-space interrupts, or the user has no permission
            _LOG.warning("no interrupts (%s): the registers are polled instead", error)
            super().__init__({**description, "interrupts": {}})
        self.accelerator_interrupt = getattr(self, INTERRUPT, None)
        # Keep the interrupt controller alive: an interrupt refers to it weakly, and pynq drops it with the next overlay.
        parent = getattr(self.accelerator_interrupt, "parent", None)
        self._controller = parent() if parent is not None else None
