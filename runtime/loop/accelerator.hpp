// An accelerator as a target of the compiled loop: it writes the input buffer, rings, waits, and reads the results. The
// definition is Python's: runtime/driver/driver.py, hw/compiler/host.py and runtime/accelerator/float_logits.py.
#pragma once

#include <cstdint>

#include "rescoring.hpp"

namespace edgedec {

constexpr int64_t kMostSlots = 8;    // rows of a pass
constexpr int64_t kMostTurns = 2;    // tables of angles
constexpr int64_t kCounters = 6;     // registers counter_..., of 64 bits each
constexpr int64_t kMostFound = 64;   // likeliest tokens of a row

// Programs may write the host's cache back and discard it by instructions. Linux lets them on AArch64 (where the processor
// has an erratum, it does it for them), and on no other processor of a board.
#if defined(__aarch64__)
constexpr bool kCacheInstructions = true;
#else
constexpr bool kCacheInstructions = false;
#endif

// Why an operation did not succeed.
enum class PassFailure : int64_t {
    none = 0,
    called = 1,    // a function of the device failed
    owner = 2,     // the accelerator has the addresses of another driver
    error = 3,     // the accelerator stopped with an error
    silent = 4,    // it gave no answer in time
    idle = 5,      // nothing runs on it, and there was no answer
    ids = 6,       // it gave ids outside of the vocabulary
};

// Files of the settings of a buffer of u-dma-buf (runtime/driver/udmabuf.py), whose writing makes the host's cache agree with
// memory from `start` on. With `action` below 0 there are none.
struct CacheFiles {
    int64_t offset, size, direction, action;
    int64_t start, value;  // value: of the direction
};

// An accelerator with a program, as `AcceleratorArguments` of runtime/accelerator/lent_arguments.py lays it out. Offsets are in bytes.
struct AcceleratorArguments {
    // The arrays that the loop writes and reads are those of TargetArguments.
    const double* embed;
    const int64_t* positions;
    const uint64_t* visible;
    const int64_t* sequences;
    const int32_t* groups;  // the table of blocks: the block of a sequence is the first group of its rows in the cache
    float* logits;
    int32_t* found_ids;
    int64_t found;   // ids of each row; 0: whole rows
    double seconds;  // the last pass took them
    // Its registers, mapped as words; null: `read` and `write` are called. `wait` returns 1 with an interrupt and 0 without; null:
    // the registers are read every `poll_seconds`. `flush` writes the host's cache of the input buffer back, and `fetch`
    // discards that of bytes of the output buffer; null: the files or instructions do it, or memory is coherent. All return a
    // negative number if they fail.
    volatile uint32_t* registers;
    int64_t (*read)(int64_t offset);
    int64_t (*write)(int64_t offset, int64_t value);
    int64_t (*wait)(double seconds);
    int64_t (*flush)();
    int64_t (*fetch)(int64_t start, int64_t bytes);
    CacheFiles flush_files, fetch_files;
    int64_t cache_instructions;  // 1: the processor's instructions do it, which are there with `kCacheInstructions`
    double poll_seconds, patience_seconds, clock_hz;
    // Places of registers, bits of their fields, and the address of the output buffer, which shows whose the accelerator is.
    int64_t owner_at, parameters_at, position_at, mask_at, commit_slots_at, control_at, status_at, events_at, counters_at;
    int64_t committed_shift, logits_shift, start_bit, commit_bit, latch_bit, clear_bit, busy_bits, done_bit, error_bit, committed_bit;
    int64_t begins_at, group_at, later_at;  // places of the registers of several sequences; 0: there are none
    int64_t owner;
    // The input buffer: rows of the residual, then tables of angles. `places` has the offset of each piece of `port_bytes` in the
    // memory, which is dealt out to the read ports.
    uint8_t* input;
    const int32_t* places;
    int64_t input_bytes, port_bytes, slots, width, item_bytes, rows_start;
    double scale, per_unit, most;  // `per_unit` is a power of two, so that no product with it is rounded
    const int16_t* angles[kMostTurns];  // [positions][pairs][2]
    int64_t angles_start[kMostTurns];
    int64_t turns, pairs;
    // The output buffer: scales [slots], the likeliest [top_k][slots], and whole rows of `row_bytes` for each id from `rows_at` on.
    const uint8_t* output;
    int64_t top_k, vocab, ids, logit_exponent, rows_at, row_bytes;
    int64_t likeliest;  // tokens of each row that the texts need; 0: whole rows
    HeadRows head;      // the rows that score a rough head's tokens again; `logit_exponent` is then theirs
    // Returns the seconds of a pass, for a device without a clock; null: it has one.
    double (*estimate)(int64_t rows, int64_t past);
    int64_t group_positions;  // positions of a group of the cache; several sequences read whole groups
    // The work so far: passes with their rows, commits, the seconds of both, and the sums of their counters.
    int64_t passes, rows, commits;
    double busy_seconds;
    int64_t counters[kCounters];
    int64_t accesses, quiet;  // accesses to registers; ends without an interrupt
    // The bits of the events that end what runs and waits; 0: nothing does. A commit that moves rows is one of these until the next
    // pass has ended, or `settle`.
    int64_t pending;
    int64_t chained;          // 1: the counters of the last pass began with those of a commit
    int64_t moved_after;      // committed positions before the rows that the last commit moves
    int64_t failure;          // a `PassFailure`
    int64_t written;          // rows of the input buffer that are not zero
    int64_t running;          // rows of the last pass
};

// Returns what is out of range; null: nothing is.
const char* accelerator_fault(const AcceleratorArguments& arguments);

// `submit`, `wait`, `move` and `settle` of TargetArguments, whose `session` and `cache` are AcceleratorArguments. The accelerator queues
// a move and the next pass, and `wait` waits for both.
int32_t accelerator_submit(void* session, int64_t rows, int64_t results);
int32_t accelerator_wait(void* session);
int32_t accelerator_move(const int64_t* numbers, int64_t count, void* session, const int32_t* blocks, int64_t stride, int64_t held,
                         int64_t start, const int32_t* nodes, int64_t rows);
void accelerator_settle(void* cache);

}  // namespace edgedec
