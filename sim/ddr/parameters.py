"""What a memory is made of: the DDR4 of a KV260 behind its AXI ports, or bytes at one flat rate."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from edgedec.errors import UsageError

__all__ = ["KV260", "KV260_FLAT", "DdrParameters"]

_MOST_PORTS = 8  # kMostPorts in parameters.hpp
_WIDTHS = (4, 8, 16, 32, 64)


@dataclass(frozen=True, kw_only=True)
class DdrParameters:
    """AXI ports, a controller that reorders, banks with open pages. The defaults are the KV260's.

    Members whose name ends in ``_hz``, ``_bytes`` or ``_bit`` are that; the others count things, or clocks of the
    controller (``clock_hz``: two of the DRAM's clocks). Each comment gives the source:

    - [init] register values that the board's boot program writes into its memory controller:
      github.com/u-boot/u-boot, board/xilinx/zynqmp/zynqmp-sm-k26-revA/psu_init_gpl.c; names of the fields from AMD UG1087;
    - [UG1085] AMD's Zynq UltraScale+ reference manual; [AXI] width and clock of the design that was measured;
    - [fitted] chosen so that docs/ddr-model.md's table comes out; [assumed] neither looked up nor seen in it.

    Raises:
        UsageError: a member is out of range.
    """

    port_hz: int = 250_000_000  # [AXI] pl_clk0
    port_bytes: int = 16  # [AXI] 128-bit HP ports: 4.0 GB/s each
    # [UG1085] PL-PS Interface Specifics: which port of the controller HP0..HP3 go to; HP1 and HP2 share one.
    controller_port: tuple[int, ...] = (0, 1, 1, 2)
    port_commands: int = 8  # bursts waiting in a port, of each direction [assumed: no effect from 4 on]
    port_lines: int = 48  # lines of 64 bytes under way or not taken yet: 3 KiB, past a refresh and the latency [fitted]
    port_entries: int = 9  # lines of a port that the controller holds at most [fitted]
    port_write_lines: int = 16  # [assumed: no effect from 8 on]
    request_clocks: int = 40  # port to controller's queue [fitted]
    return_clocks: int = 30  # controller to port; an idle read takes 172 ns then [fitted]
    response_clocks: int = 20  # [assumed: no effect on rates]
    return_beat_clocks: int = 1  # a controller port moves 128 bits a clock [assumed]

    clock_hz: int = 533_333_333  # [init] DPLL 1066.67 MHz for the DRAM, half of it for the controller
    bank_group_bit: int = 6  # [init] ADDRMAP8: neighbouring lines alternate between the two groups
    bank_groups: int = 2
    bank_bit: int = 14  # [init] ADDRMAP1: address bits 14 and 15
    banks: int = 4  # of a group
    row_bit: int = 16  # [init] ADDRMAP5, 6, 9 to 11
    read_entries: int = 16  # lines that it can choose among [fitted; the register's 33 conflicts too rarely]
    write_entries: int = 64  # [assumed: no effect from 32 on]
    write_starve_clocks: int = 64  # [init] PERFWR1.w_max_starve
    overtakes: int = 4  # times that hits on an open row may pass a bank's oldest access [fitted]
    grant_lines: int = 4  # a port's turn: 256 bytes [fitted; UG1085: bursts inside have 16 beats]
    run_length: int = 8  # [init] PERFWR1.w_xact_run_length
    idle_gap: int = 1  # [init] SCHED.rdwr_idle_gap

    t_line: int = 2  # eight beats of the data bus
    t_ccd_s: int = 2  # [init] DRAMTMG9
    t_ccd_l: int = 3  # [init] DRAMTMG4
    t_rcd: int = 8  # [init] DRAMTMG4
    t_rp: int = 9  # [init] DRAMTMG4
    t_ras: int = 18  # [init] DRAMTMG0
    t_rc: int = 26  # [init] DRAMTMG1
    t_rrd_s: int = 3  # [init] DRAMTMG9
    t_rrd_l: int = 4  # [init] DRAMTMG4
    t_faw: int = 16  # [init] DRAMTMG0
    read_to_precharge: int = 4  # [init] DRAMTMG1
    write_to_precharge: int = 17  # [init] DRAMTMG0
    read_to_write: int = 6  # [init] DRAMTMG2
    write_to_read_s: int = 11  # [init] DRAMTMG9: other bank group
    write_to_read_l: int = 13  # [init] DRAMTMG2: same bank group
    read_latency: int = 8  # [init] DRAMTMG2
    t_refi: int = 4128  # [init] RFSHTMG: 7.74 us
    t_rfc: int = 187  # [init] RFSHTMG: 351 ns

    flat_bytes_per_s: int = 0  # not 0: no banks and no refresh, this rate for any traffic

    def __post_init__(self) -> None:
        if not 1 <= len(self.controller_port) <= _MOST_PORTS or not all(
            0 <= port < _MOST_PORTS for port in self.controller_port
        ):
            raise UsageError(
                f"controller_port must be 1 to {_MOST_PORTS} numbers below 8, not {self.controller_port!r}"
            )
        if set(self.controller_port) != set(range(max(self.controller_port) + 1)):
            raise UsageError(f"controller_port must leave out no number, not {self.controller_port!r}")
        if self.port_bytes not in _WIDTHS:
            raise UsageError(f"port_bytes must be one of {_WIDTHS}, not {self.port_bytes!r}")
        for name in ("bank_groups", "banks"):
            if getattr(self, name) not in (1, 2, 4, 8):
                raise UsageError(f"{name} must be 1, 2, 4 or 8, not {getattr(self, name)!r}")
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "controller_port":
                continue
            least = 0 if field.name in _MAY_BE_ZERO else 1
            most = 63 if field.name.endswith("_bit") else 1 << 40
            if not isinstance(value, int) or not least <= value <= most:
                raise UsageError(f"{field.name} must be {least} to {most}, not {value!r}")
        if self.t_refi <= 2 * self.t_rfc:
            raise UsageError(f"t_refi must be past twice t_rfc, {2 * self.t_rfc}, not {self.t_refi!r}")

    @property
    def ports(self) -> int:
        return len(self.controller_port)

    def flat(self, bytes_per_s: int) -> DdrParameters:
        """The same ports before a memory of one rate, which treats them all alike."""
        return replace(self, controller_port=tuple(range(self.ports)), flat_bytes_per_s=bytes_per_s)

    def values(self) -> list[int]:
        """As parameters.hpp has them."""
        out: list[int] = []
        for field in fields(self):
            if field.name == "controller_port":
                out += [self.ports, *self.controller_port, *[0] * (_MOST_PORTS - self.ports)]
            else:
                out.append(getattr(self, field.name))
        return out


_MAY_BE_ZERO = frozenset(
    ("overtakes", "request_clocks", "return_clocks", "response_clocks", "idle_gap", "read_latency", "flat_bytes_per_s")
)

KV260 = DdrParameters()
KV260_FLAT = KV260.flat(13_300_000_000)
