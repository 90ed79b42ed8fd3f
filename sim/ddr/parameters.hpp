// The parameters of a memory. They are int64_t only, in the order of edgedec.sim.ddr.parameters.DdrParameters: Python fills
// them field by field. Times are clocks of the controller unless a name says otherwise.
#pragma once

#include <cstdint>

namespace edgedec::ddr {

constexpr int kMostPorts = 8;
constexpr int kLineBytes = 64;  // one burst of eight on a 64-bit bus

struct Parameters {
    int64_t port_hz, port_bytes, ports, controller_port[kMostPorts];
    int64_t port_commands, port_lines, port_entries, port_write_lines, request_clocks, return_clocks, response_clocks, return_beat_clocks;
    int64_t clock_hz, bank_group_bit, bank_groups, bank_bit, banks, row_bit;
    int64_t read_entries, write_entries, write_starve_clocks, overtakes, grant_lines, run_length, idle_gap;
    int64_t t_line, t_ccd_s, t_ccd_l, t_rcd, t_rp, t_ras, t_rc, t_rrd_s, t_rrd_l, t_faw;
    int64_t read_to_precharge, write_to_precharge, read_to_write, write_to_read_s, write_to_read_l, read_latency;
    int64_t t_refi, t_rfc;
    int64_t flat_bytes_per_s;  // not 0: no banks, this many bytes in a second
};
constexpr int kParameters = sizeof(Parameters) / sizeof(int64_t);

// Sixty-four bytes of one row, on their way to the memory.
struct Access {
    uint64_t row;
    int32_t port;
    uint32_t slot;  // slot of the port's lines; reads only
    int64_t since;  // clock of arrival
    int64_t order;  // order of arrival
};

}  // namespace edgedec::ddr
