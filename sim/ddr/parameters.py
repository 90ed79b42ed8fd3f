"""Parameters of a memory: the DDR4 of a KV260 with its AXI ports, or a memory with one flat rate."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from edgedec.errors import UsageError

__all__ = ["KV260", "KV260_FLAT", "DdrParameters"]

_MOST_PORTS = 8  # kMostPorts in parameters.hpp
_WIDTHS = (4, 8, 16, 32, 64)


@dataclass(frozen=True, kw_only=True)
class DdrParameters:
    """Parameters of AXI ports, of a controller that reorders, and of banks with open pages. The defaults are the KV260's.

    The unit of a member is at the end of its name (``_hz``, ``_bytes``, ``_bit``). The other members are counts, or numbers
    of controller clocks; ``clock_hz`` is the frequency of these, half of the DRAM's. Each comment gives the source:

    - [init] register values that the board's boot program writes into its memory controller:
      github.com/u-boot/u-boot, board/xilinx/zynqmp/zynqmp-sm-k26-revA/psu_init_gpl.c; names of the fields from AMD UG1087;
    - [UG1085] AMD's Zynq UltraScale+ reference manual; [AXI] width and clock of the measured design;
    - [fitted] chosen so that the model reproduces the table of docs/reports/ddr-model.md; [assumed] neither documented nor
      visible in that table.

    Raises:
        UsageError: a member is out of range.
    """

    port_hz: int = 250_000_000  # [AXI] pl_clk0
    port_bytes: int = 16  # [AXI] 128-bit HP ports: 4.0 GB/s each
    # Ports of the controller for HP0..HP3; HP1 and HP2 share one [UG1085, PL-PS Interface Specifics].
    controller_port: tuple[int, ...] = (0, 1, 1, 2)
    port_commands: int = 8  # bursts waiting in a port, of each direction [UG1085, AXI FIFO Interface]
    # Lines of 64 bytes that the controller has answered and the master has not taken, beyond which a port sends no further
    # one: 128 words of 128 bits [UG1085]. The lines that are under way then come in addition.
    port_lines: int = 32
    port_entries: int = 12  # lines of a port that the controller holds at most [fitted]
    port_write_lines: int = 16  # [assumed: no effect from 8 on]
    request_clocks: int = 50  # from a port to the controller's queue [fitted]
    return_clocks: int = 20  # from the controller to a port, so that an idle read takes 172 ns [fitted]
    response_clocks: int = 20  # [assumed: no effect on rates]
    return_beat_clocks: int = 1  # clocks for 128 bits at a port of the controller [assumed]

    clock_hz: int = 533_333_333  # [init] DPLL 1066.67 MHz for the DRAM, half of it for the controller
    bank_group_bit: int = 6  # [init] ADDRMAP8: neighbouring lines alternate between the two groups
    bank_groups: int = 2
    bank_bit: int = 14  # [init] ADDRMAP1: address bits 14 and 15
    banks: int = 4  # banks of a group
    row_bit: int = 16  # [init] ADDRMAP5, 6, 9 to 11
    read_entries: int = (
        24  # lines that the controller can choose among [fitted; the register's 33 gives too few conflicts]
    )
    write_entries: int = 64  # [assumed: no effect from 32 on]
    write_starve_clocks: int = 64  # [init] PERFWR1.w_max_starve
    overtakes: int = 4  # hits on an open row that may pass a bank's oldest access [fitted]
    grant_lines: int = 4  # lines of a port's turn: 256 bytes [fitted; UG1085: internal bursts have 16 beats]
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

    flat_bytes_per_s: int = 0  # rate of a memory without banks and refresh; 0: the memory has both

    def __post_init__(self) -> None:
        if not 1 <= len(self.controller_port) <= _MOST_PORTS or not all(
            0 <= port < _MOST_PORTS for port in self.controller_port
        ):
            raise UsageError(
                f"controller_port must be 1 to {_MOST_PORTS} numbers below 8, not {self.controller_port!r}"
            )
        if set(self.controller_port) != set(range(max(self.controller_port) + 1)):
            raise UsageError(f"controller_port must use every number up to its largest, not {self.controller_port!r}")
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
            raise UsageError(f"t_refi must be more than twice t_rfc, {2 * self.t_rfc}, not {self.t_refi!r}")

    @property
    def ports(self) -> int:
        return len(self.controller_port)

    def flat(self, bytes_per_s: int) -> DdrParameters:
        """Return parameters of the same ports with a memory of one rate, which treats all ports alike."""
        return replace(self, controller_port=tuple(range(self.ports)), flat_bytes_per_s=bytes_per_s)

    def with_other_master(self) -> DdrParameters:
        """Return parameters with one more port, for another master.

        The port is alone on a port of the controller: the processor does not share the controller's ports of HP0 to HP3
        [UG1085].
        """
        return replace(self, controller_port=(*self.controller_port, max(self.controller_port) + 1))

    def values(self) -> list[int]:
        """Return the values in the order of parameters.hpp."""
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
