"""The block's driver as pynq binds it, by its name in the bitstream's hand-off file. Needs pynq."""

from __future__ import annotations

import logging
from typing import Any

import pynq

from edgedec.hw.isa.ip_core import INTERRUPT, VLNV

__all__ = ["AcceleratorIP"]

_LOG = logging.getLogger(__name__)


class AcceleratorIP(pynq.DefaultIP):
    """Registers by ``mmio``, and ``accelerator_interrupt``: a pynq.Interrupt, or None where the design has none or the
    system cannot deliver it.
    """

    bindto = [VLNV]  # noqa: RUF012  pynq reads it so

    def __init__(self, description: dict[str, Any]) -> None:
        try:
            super().__init__(description)
        except OSError as error:  # no user-space interrupts in this kernel, or no right to them
            _LOG.warning("no interrupts (%s): the registers are polled instead", error)
            super().__init__({**description, "interrupts": {}})
        self.accelerator_interrupt = getattr(self, INTERRUPT, None)
        # pynq holds its interrupt controllers until the next overlay is loaded, an interrupt refers to its own weakly.
        parent = getattr(self.accelerator_interrupt, "parent", None)
        self._controller = parent() if parent is not None else None
