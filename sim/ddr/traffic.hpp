// Masters that move bytes and look at none of them: for calibration and for cost curves.
#pragma once

#include "memory.hpp"

namespace edgedec::ddr {

// Mirrored by edgedec.sim.ddr.traffic.Stream; only int64_t.
struct Stream {
    int64_t port, write, address, bytes;
    int64_t burst_bytes;   // bytes of one burst; cut at 4 KiB and at a chunk's end
    int64_t outstanding;   // bursts under way at most
    int64_t chunk_bytes, stride_bytes;  // a chunk on end, then from its start to the next one's
    int64_t start_cycle;
    int64_t beat_cycles;   // a beat is moved every so many cycles at most
    int64_t after, ratio;  // after >= 0: a byte for each ``ratio`` bytes that this other stream has moved; the rest at its end
    int64_t finished;      // out: the cycle after its last beat or answer
};

// Runs all of them to their end. Returns the cycles that took, or -1 after ``limit`` cycles.
int64_t run(Memory& memory, int ports, int port_bytes, Stream* streams, int count, int64_t limit);

}  // namespace edgedec::ddr
