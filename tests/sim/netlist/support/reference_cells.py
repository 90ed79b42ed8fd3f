"""Model cells of the ECP5 in a plain way: each is a class with a step. Pins are given by name, as numbers."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["BlockMemory", "FlipFlop", "SmallMemory", "carry_cell", "multiplier"]

Pins = Mapping[str, int]


def carry_cell(tables: tuple[int, int], injected: tuple[bool, bool], pins: Pins) -> dict[str, int]:
    """Compute a CCU2C."""
    outputs, carry = {}, pins["CIN"]
    for half in (0, 1):
        a, b, c, d = (pins[f"{name}{half}"] for name in "ABCD")
        four = tables[half] >> (a + 2 * b + 4 * c + 8 * d) & 1
        two = tables[half] >> (a + 2 * b) & 1
        if injected[half]:
            outputs[f"S{half}"] = four
            carry = carry if four else 0
        else:
            outputs[f"S{half}"] = four ^ carry
            carry = carry if four else two
    return outputs | {"COUT": carry}


def multiplier(a: int, b: int, signed_a: int, signed_b: int) -> int:
    """Compute a MULT18X18D."""

    def value(bits: int, signed: int) -> int:
        return bits - (1 << 18) if signed and bits >> 17 else bits

    return value(a, signed_a) * value(b, signed_b) & (1 << 36) - 1


class _Clocked:
    def __init__(self, *, falling: bool) -> None:
        self._falling, self._before = falling, True

    def _edge(self, clock: int) -> bool:
        level = bool(clock) != self._falling
        edge, self._before = level and not self._before, level
        return edge


class FlipFlop(_Clocked):
    def __init__(self, *, falling: bool, enable: str, reset_inverted: bool, value: int, asynchronous: bool) -> None:
        super().__init__(falling=falling)
        self._enable, self._inverted, self._value = enable, reset_inverted, value
        self._asynchronous = asynchronous
        self.q = value

    def step(self, clock: int, d: int, enable: int, reset: int) -> None:
        on = {"1": True, "0": False, "CE": bool(enable), "INV": not enable}[self._enable]
        clear = bool(reset) != self._inverted
        edge = self._edge(clock)
        if (self._asynchronous or edge) and clear:
            self.q = self._value
        elif edge and on:
            self.q = d


class SmallMemory(_Clocked):
    """Model a TRELLIS_DPR16X4."""

    def __init__(self, *, falling: bool, enable: str, contents: int) -> None:
        super().__init__(falling=falling)
        self._enable = enable
        self._words = [contents >> 4 * word & 15 for word in range(16)]

    def step(self, clock: int, address: int, data: int, enable: int) -> None:
        on = {"1": True, "0": False, "WRE": bool(enable), "INV": not enable}[self._enable]
        if self._edge(clock) and on:
            self._words[address] = data

    def read(self, address: int) -> int:
        return self._words[address]


class BlockMemory:
    """Model a DP16KD: 2048 bytes of nine bits. Widths below nine use eight bits of each."""

    def __init__(self, widths: tuple[int, int], modes: tuple[str, str], contents: list[int]) -> None:
        self._widths, self._modes = widths, modes
        self._bytes = list(contents)
        self.out = [0, 0]

    def _places(self, port: int, address: int) -> list[tuple[int, int]]:
        """Return byte and bit in it, of each bit of the word."""
        width = self._widths[port]
        if width < 9:
            return [(address // 8, address % 8 // width * width + bit) for bit in range(width)]
        first = address // 8 // (width // 9) * (width // 9)
        return [(first + bit // 9, bit % 9) for bit in range(width)]

    def _read(self, port: int, address: int) -> int:
        return sum((self._bytes[byte] >> bit & 1) << n for n, (byte, bit) in enumerate(self._places(port, address)))

    def step(self, edges: tuple[bool, bool], ports: tuple[Pins, Pins]) -> None:
        """Step with each port's pins: address, data, enable, write, reset."""
        writes: list[dict[tuple[int, int], int]] = [{}, {}]
        for port, pins in enumerate(ports):
            if not (edges[port] and pins["enable"] and pins["write"]) or pins["reset"]:
                continue
            for n, place in enumerate(self._places(port, pins["address"])):
                if self._widths[port] < 18 or pins["address"] >> n // 9 & 1:
                    writes[port][place] = pins["data"] >> n & 1
        before = list(self._bytes)
        for port in (0, 1):
            for (byte, bit), value in writes[port].items():
                self._bytes[byte] = self._bytes[byte] & ~(1 << bit) | value << bit
        after, self._bytes = self._bytes, before
        for port, pins in enumerate(ports):
            if not edges[port]:
                continue
            if pins["reset"]:
                self.out[port] = 0
            elif pins["enable"] and not (pins["write"] and self._modes[port] == "NORMAL"):
                word = self._read(port, pins["address"])
                # A read of the other port's write at the same moment returns the complement.
                for n, place in enumerate(self._places(port, pins["address"])):
                    word ^= (place in writes[1 - port]) << n
                    if self._modes[port] == "WRITETHROUGH" and place in writes[port]:
                        word = word & ~(1 << n) | writes[port][place] << n
                self.out[port] = word
        self._bytes = after
