from __future__ import annotations

import numpy as np
import pytest

from edgedec.errors import UsageError
from edgedec.hw.isa.striping import block_bytes, physical_address, stripe, unstripe


@pytest.mark.parametrize(("ports", "port_bytes"), [(1, 4), (2, 4), (4, 16), (4, 1)])
def test_every_byte_has_its_physical_address(ports: int, port_bytes: int) -> None:
    image = np.random.default_rng(0).integers(0, 256, 3 * block_bytes(ports) - 5, dtype=np.uint8)
    memory = stripe(image, ports=ports, port_bytes=port_bytes)
    addresses = [physical_address(n, ports=ports, port_bytes=port_bytes) for n in range(image.size)]
    assert len(set(addresses)) == image.size
    assert (memory[addresses] == image).all()
    assert memory.size == 3 * block_bytes(ports)
    assert (unstripe(memory, ports=ports, port_bytes=port_bytes)[: image.size] == image).all()


def test_one_port_is_the_identity() -> None:
    assert all(physical_address(n, ports=1, port_bytes=16) == n for n in range(0, 20_000, 7))


def test_each_port_reads_4_kib_in_sequence() -> None:
    """Check slice 2 of 256 neighbouring beats of 64 bytes."""
    addresses = [physical_address(16384 + beat * 64 + 32, ports=4, port_bytes=16) for beat in range(256)]
    assert addresses == [16384 + 2 * 4096 + beat * 16 for beat in range(256)]


def test_bad_input_is_refused() -> None:
    with pytest.raises(UsageError, match="ports must be 1, 2 or 4, not 3"):
        block_bytes(3)
    with pytest.raises(UsageError, match="100 bytes are not whole blocks of 8192 for 2 ports"):
        unstripe(np.zeros(100, np.uint8), ports=2, port_bytes=8)
