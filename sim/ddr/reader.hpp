// The accelerator's read stream as a memory sees it (edgedec.hw.memory.prefetcher), and what it writes in between.
#pragma once

#include "memory.hpp"

namespace edgedec::ddr {

// Mirrored by edgedec.sim.ddr.reader; only int64_t.
struct Range {
    int64_t start, beats;  // beats of the stream, in logical order
    int64_t wait;          // cycles in which the reader does not take the first of them, though all before it are taken
    int64_t finished;      // out: the cycle after its last beat was taken
};

struct Write {
    int64_t due;  // beats that the reader has taken by then
    int64_t address, beats;
};

// Another master of the memory: accesses of a line each, at random places, at a steady rate.
struct Other {
    int64_t port;            // no other master uses it
    int64_t bytes_per_s;     // asked for; what the memory does not take in time is asked for later
    int64_t address, lines;  // the places: lines of 64 bytes from this address on
    int64_t write_one_in;    // an access of so many is a write; 0: none
    int64_t outstanding;     // accesses under way at most, of each direction
    int64_t seed;
    int64_t done;            // out: accesses that ended
};

struct Reader {
    int64_t ports, port_bytes;
    int64_t depth;         // slices that a port's queue holds
    int64_t outstanding;   // bursts of a port under way at most
    int64_t burst;         // beats of the longest burst, a power of two; bursts end at its multiples
    int64_t lead;          // slices that a port may be ahead of the slowest one; 0: as many as fit
    int64_t batch;         // writes that go together; all of them, once the last is due
    int64_t write_cycles;  // from one write's becoming due to the next one's, at least
    int64_t starved;       // out: cycles in which the reader wanted a beat and it was not there
    int64_t most_lead;     // out
};

// Runs to the last beat. Returns the cycles that took, or -1 after ``limit`` cycles. ``other`` may be null.
int64_t read(Memory& memory, Reader& reader, Range* ranges, int64_t count, const Write* writes, int64_t write_count,
             Other* other, int64_t port_hz, int64_t limit);

}  // namespace edgedec::ddr
