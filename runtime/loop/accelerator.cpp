#include "accelerator.hpp"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

namespace edgedec {
namespace {

constexpr int64_t kBest = 1, kWholeRows = 2;  // values of the field `logits`
constexpr int64_t kResultBytes = 8;
constexpr double kFirstSlice = 0.01, kLongestSlice = 1.0;  // seconds between two looks at the registers, if `wait` is called

struct Failed {
    PassFailure why;
};

// Orders accesses to buffers and to registers, also for an accelerator that is no processor.
void barrier() {
#if defined(__aarch64__)
    __asm__ volatile("dsb sy" ::: "memory");
#elif defined(__arm__)
    __asm__ volatile("dsb" ::: "memory");
#else
    __sync_synchronize();
#endif
}

// Writes the lines of the host's cache back that have these bytes, and discards them with `discards`. A line that the host has not
// written to is only discarded.
void maintain(const uint8_t* first, int64_t bytes, bool discards) {
#if defined(__aarch64__)
    uint64_t type = 0;
    __asm__ volatile("mrs %0, ctr_el0" : "=r"(type));
    const uint64_t line = uint64_t{4} << (type >> 16 & 15);
    const auto begin = reinterpret_cast<uint64_t>(first), end = begin + static_cast<uint64_t>(bytes);
    for (uint64_t at = begin & ~(line - 1); at < end; at += line) {
        if (discards) {
            __asm__ volatile("dc civac, %0" ::"r"(at) : "memory");
        } else {
            __asm__ volatile("dc cvac, %0" ::"r"(at) : "memory");
        }
    }
    barrier();
#else
    static_cast<void>(first), static_cast<void>(bytes), static_cast<void>(discards);
#endif
}

// A result of a row: its scale, and the likeliest tokens.
struct Scale {
    uint16_t mantissa;
    int16_t exponent;
    uint32_t sum;
};
struct Found {
    int32_t logit, id;
};

class Accelerator {
  public:
    explicit Accelerator(AcceleratorArguments& arguments) : own_(arguments) {}

    void start(int64_t rows) {
        own_.running = rows;
        fill(rows);
        if (own_.cache_instructions) maintain(own_.input, own_.input_bytes, false);
        if (own_.flush) called(own_.flush());
        synchronize(own_.flush_files, 0, own_.input_bytes);
        check_owner();
        ring_pass(rows, own_.likeliest ? kBest : kWholeRows);
    }

    void finish() {
        own_.seconds = 0;
        const int64_t rows = own_.running;
        end(own_.likeliest ? result_bytes() : output_bytes(), rows);
        own_.found = own_.likeliest ? std::min(own_.top_k, own_.vocab) : 0;
        if (own_.likeliest && read_best(rows)) return;
        if (own_.likeliest) {  // tokens that it has not found may be among the likeliest: whole rows say
            check_owner();
            ring_pass(rows, kWholeRows);
            end(output_bytes(), rows);
        }
        own_.found = 0;
        read_rows(rows);
    }

    void commit(int64_t past, const int32_t* nodes, int64_t count, int64_t rows) {
        int64_t chosen = 0;
        for (int64_t at = 0; at < count; ++at) chosen |= int64_t{1} << nodes[at];
        check_owner();
        write(own_.commit_slots_at, chosen);
        write(own_.parameters_at, rows | past << own_.committed_shift);
        own_.moved_after = past;
        ring(own_.commit_bit, own_.committed_bit);
    }

    void settle() {
        if (own_.pending == own_.committed_bit) end(0, 0);
    }

  private:
    int64_t result_bytes() const { return kResultBytes * own_.slots * (1 + own_.top_k); }
    int64_t output_bytes() const { return own_.rows_at + own_.vocab * own_.row_bytes; }

    void called(int64_t result) const {
        if (result < 0) throw Failed{PassFailure::called};
    }

    uint32_t read(int64_t offset) {
        ++own_.accesses;
        if (own_.registers) return own_.registers[offset / 4];
        const int64_t value = own_.read(offset);
        called(value);
        return static_cast<uint32_t>(value);
    }

    void write(int64_t offset, int64_t value) {
        ++own_.accesses;
        if (own_.registers) {
            own_.registers[offset / 4] = static_cast<uint32_t>(value);
        } else {
            called(own_.write(offset, value));
        }
    }

    uint64_t read_long(int64_t offset) {
        const uint64_t low = read(offset);
        return low | static_cast<uint64_t>(read(offset + 4)) << 32;
    }

    void check_owner() {
        if (read_long(own_.owner_at) != static_cast<uint64_t>(own_.owner)) throw Failed{PassFailure::owner};
    }

    void ring_pass(int64_t rows, int64_t logits) {
        const int64_t past = own_.sequences[1];
        write(own_.parameters_at, rows | past << own_.committed_shift | logits << own_.logits_shift);
        if (own_.begins_at) write_sequences(rows);
        for (int64_t row = 0; row < rows; ++row) write(own_.position_at + 4 * row, own_.positions[row]);
        for (int64_t row = 0, at = 0, first = 0; row < rows; ++row) {  // a mask begins with the first row of its sequence
            while (row >= first + own_.sequences[2 * at]) first += own_.sequences[2 * at++];
            write(own_.mask_at + 4 * row, static_cast<int64_t>(own_.visible[row] << first));
        }
        ring(own_.start_bit, own_.done_bit);
    }

    void write_sequences(int64_t rows) {
        int64_t begins = 0, first = 0;
        for (int64_t at = 0; first < rows; first += own_.sequences[2 * at++]) {
            if (at) begins |= int64_t{1} << first, write(own_.later_at + 4 * (at - 1), own_.sequences[2 * at + 1]);
            write(own_.group_at + 4 * at, own_.groups[at]);
        }
        write(own_.begins_at, begins);
    }

    // Returns the committed positions that a pass reads: several sequences begin with a group each.
    int64_t positions_read(int64_t rows) const {
        if (own_.sequences[0] == rows) return own_.sequences[1];
        int64_t groups = 0, first = 0;
        for (int64_t at = 0; first < rows; first += own_.sequences[2 * at++])
            groups += (own_.sequences[2 * at + 1] + own_.group_positions - 1) / own_.group_positions;
        return groups * own_.group_positions;
    }

    // Queues what the registers describe. Events and counters begin with it, but for a pass that follows a commit whose end was not
    // seen: they begin with the commit then.
    void ring(int64_t doorbell, int64_t event) {
        own_.chained = event == own_.done_bit && own_.pending == own_.committed_bit;
        own_.pending = own_.chained ? own_.pending | event : event;
        barrier();
        if (!own_.chained) write(own_.events_at, own_.done_bit | own_.error_bit | own_.committed_bit);
        write(own_.control_at, own_.chained ? doorbell : doorbell | own_.clear_bit);
    }

    // Waits for the ends of what was queued, counts it, and makes the first bytes of the output buffer readable. `rows` is 0 for a
    // commit without a pass after it.
    void end(int64_t bytes, int64_t rows) {
        auto began = std::chrono::steady_clock::now();
        const double first = own_.wait ? kFirstSlice : own_.poll_seconds;
        double left = own_.patience_seconds, part = first;
        for (;;) {
            part = std::max(0.0, std::min(part, left));
            const bool interrupted = pause(part);
            // The status comes first, so that an operation that ends between the two reads is not missed.
            const uint32_t status = read(own_.status_at);
            const auto events = static_cast<int64_t>(read(own_.events_at));
            // A device that is called has a time of its own.
            left = own_.wait ? left - part : own_.patience_seconds - seconds_since(began);
            if (own_.wait) part = std::min(2 * part, kLongestSlice);
            const int64_t ended = events & own_.pending;
            if (events & own_.error_bit) {
                if (own_.chained) own_.pending &= ~(ended & own_.committed_bit);  // the commit has not failed, but the pass after it
                throw Failed{PassFailure::error};
            }
            if (ended) {
                own_.quiet += !interrupted;
                own_.pending &= ~ended;
                if (!own_.pending) break;
                write(own_.events_at, ended);  // so that the interrupt is that of the pass
                began = std::chrono::steady_clock::now();
                left = own_.patience_seconds, part = first;
                continue;
            }
            if (events) throw Failed{PassFailure::silent};
            if (!(status & own_.busy_bits)) throw Failed{PassFailure::idle};
            if (left <= 0) throw Failed{PassFailure::silent};
        }
        barrier();
        count(rows);
        if (!bytes) return;
        fetch(0, bytes);
        if (own_.head.codes) fetch(own_.head.norm_at, own_.head.norm_bytes);
    }

    void fetch(int64_t start, int64_t bytes) {
        if (own_.cache_instructions) maintain(own_.output + start, bytes, true);
        if (own_.fetch) called(own_.fetch(start, bytes));
        synchronize(own_.fetch_files, start, bytes);
    }

    static void synchronize(const CacheFiles& files, int64_t start, int64_t bytes) {
        if (files.action < 0) return;
        put_number(files.offset, files.start + start);
        put_number(files.size, bytes);
        put_number(files.direction, files.value);
        put_number(files.action, 1);
    }

    static void put_number(int64_t file, int64_t number) {
        char text[24];
        const int length = std::snprintf(text, sizeof(text), "%lld", static_cast<long long>(number));
        if (pwrite(static_cast<int>(file), text, static_cast<size_t>(length), 0) != length) throw Failed{PassFailure::called};
    }

    static double seconds_since(std::chrono::steady_clock::time_point began) {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    }

    // Waits for the interrupt, or the time between two looks at the registers. Returns whether there was an interrupt.
    bool pause(double seconds) {
        if (own_.wait) {
            const int64_t interrupted = own_.wait(seconds);
            called(interrupted);
            return interrupted > 0;
        }
        timespec time{0, static_cast<decltype(time.tv_nsec)>(seconds * 1e9)};
        nanosleep(&time, nullptr);
        return true;
    }

    void count(int64_t rows) {
        write(own_.control_at, own_.latch_bit);
        uint64_t cycles = 0;
        for (int64_t at = 0; at < kCounters; ++at) {
            const uint64_t count = read_long(own_.counters_at + 8 * at);
            own_.counters[at] += static_cast<int64_t>(count);
            if (!at) cycles = count;
        }
        const bool estimated = rows && !cycles && own_.estimate;
        const double seconds = estimated ? own_.estimate(rows, positions_read(rows)) : static_cast<double>(cycles) / own_.clock_hz;
        own_.seconds += seconds;
        own_.busy_seconds += seconds;
        own_.passes += rows > 0;
        own_.commits += rows == 0 || own_.chained;
        own_.rows += rows;
    }

    // Writes the rows of a pass; slots without a row are zero, as those that had one before become.
    void fill(int64_t rows) {
        const int64_t written = std::max(rows, own_.written);
        own_.written = rows;
        own_values().resize(static_cast<size_t>(std::max(own_.width, own_.pairs)));
        int32_t* values = own_values().data();
        for (int64_t slot = 0; slot < written; ++slot) {
            if (slot < rows) {
                to_fixed(own_.embed + slot * own_.width, values);
            } else {
                std::fill_n(values, own_values().size(), 0);
            }
            put(own_.rows_start, own_.width, slot, values);
            for (int64_t turn = 0; turn < own_.turns; ++turn) {
                const auto bytes = static_cast<size_t>(own_.pairs) * sizeof(int32_t);
                if (slot < rows) std::memcpy(values, own_.angles[turn] + 2 * own_.positions[slot] * own_.pairs, bytes);
                put(own_.angles_start[turn], own_.pairs, slot, values);
            }
        }
    }

    static std::vector<int32_t>& own_values() {
        thread_local std::vector<int32_t> values;
        return values;
    }

    void to_fixed(const double* from, int32_t* to) const {
        const double scale = own_.scale, per_unit = own_.per_unit, most = own_.most;
        for (int64_t at = 0; at < own_.width; ++at) {
            const double scaled = std::floor(from[at] * scale * per_unit + 0.5);
            const double low = scaled < -most ? -most : scaled;
            to[at] = static_cast<int32_t>(low > most ? most : low);
        }
    }

    // Writes a slot's value of each item that begins at a logical address, in pieces that lie within the piece of a port.
    void put(int64_t start, int64_t count, int64_t slot, const int32_t* values) const {
        const int64_t piece = std::min(own_.item_bytes, own_.port_bytes), first = start + 4 * slot / piece * piece;
        uint8_t* input = own_.input + 4 * slot % piece;
        if (own_.item_bytes < own_.port_bytes) {  // several items have one piece
            for (int64_t item = 0; item < count; ++item) {
                const int64_t logical = first + item * own_.item_bytes;
                store(input + own_.places[logical / own_.port_bytes] + logical % own_.port_bytes, values[item]);
            }
            return;
        }
        const int64_t step = own_.item_bytes / own_.port_bytes;
        const int32_t* places = own_.places + first / own_.port_bytes;
        for (int64_t item = 0; item < count; ++item) store(input + places[item * step], values[item]);
    }

    static void store(uint8_t* to, int32_t value) { std::memcpy(to, &value, sizeof(value)); }

    double unit_of(int64_t slot) const {
        Scale scale;
        std::memcpy(&scale, own_.output + kResultBytes * slot, sizeof(scale));
        return std::ldexp(static_cast<double>(scale.mantissa), static_cast<int>(scale.exponent + own_.logit_exponent));
    }

    // A logit as float32. Rounding may not make a smaller integer equal to the largest of the row.
    static float as_float(int64_t value, double unit, int64_t most, float top) {
        const auto rounded = static_cast<float>(static_cast<double>(value) * unit);
        return rounded == top && value < most ? std::nextafter(top, -HUGE_VALF) : rounded;
    }

    // Reads the likeliest tokens of each row. Returns false if tokens that were not found may belong to these.
    bool read_best(int64_t rows) {
        for (int64_t row = 0; row < rows; ++row)
            if (!read_best_of(row)) return false;
        return true;
    }

    struct Token {
        bool padding;
        float logit;
        int32_t id;
        int64_t integer;
    };

    // Reads the tokens that were found of a row, larger integers first. Those of a rough head are scored again.
    void find(int64_t row, int64_t count, Token* tokens) {
        for (int64_t at = 0; at < count; ++at) {
            Found found;
            std::memcpy(&found, own_.output + kResultBytes * (own_.slots * (1 + at) + row), sizeof(found));
            if (found.id < 0 || found.id >= own_.vocab) throw Failed{PassFailure::ids};
            tokens[at] = {found.id >= own_.ids, 0, found.id, found.logit};
        }
        if (!own_.head.codes) return;
        const Rescoring again = rescoring(row);
        for (int64_t at = 0; at < count; ++at) tokens[at].integer = again.logit(tokens[at].id);
        std::sort(tokens, tokens + count,
                  [](const Token& a, const Token& b) { return a.integer != b.integer ? a.integer > b.integer : a.id < b.id; });
    }

    Rescoring rescoring(int64_t row) const { return {own_.head, own_.output + own_.head.norm_at + 4 * row, own_.row_bytes}; }

    bool read_best_of(int64_t row) {
        Token tokens[kMostFound];
        const int64_t count = own_.found, needed = std::min(own_.likeliest, own_.ids);
        const double unit = unit_of(row);
        find(row, count, tokens);
        const auto own = std::count_if(tokens, tokens + count, [](const Token& token) { return !token.padding; });
        if (own < needed) return false;
        const int64_t most = tokens[0].integer;
        const auto top = static_cast<float>(static_cast<double>(most) * unit);
        const int64_t last = tokens[count - 1].integer;
        float* logits = own_.logits + row * own_.vocab;
        int32_t* ids = own_.found_ids + row * count;
        for (int64_t at = 0; at < count; ++at) {
            tokens[at].logit = as_float(tokens[at].integer, unit, most, top);
            logits[tokens[at].id] = tokens[at].logit;
            ids[at] = tokens[at].id;
        }
        // The next smaller integer is the largest that a token has which was not found, unless it equals the last one.
        const float below = as_float(last - 1, unit, most, top), last_logit = tokens[count - 1].logit;
        std::sort(ids, ids + count);
        std::sort(tokens, tokens + count, [](const Token& a, const Token& b) {
            if (a.padding != b.padding) return b.padding;
            return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
        });
        const float least = tokens[needed - 1].logit;
        if (count == own_.vocab || last_logit < least) return true;
        // Logits that equal the least one have to be found. Those of the last integer that were not found have larger ids.
        return below < least && std::all_of(tokens, tokens + count, [&](const Token& token) {
            return token.logit != least || token.integer == last;
        });
    }

    void read_rows(int64_t rows) {
        for (int64_t row = 0; row < rows; ++row) {
            const double unit = unit_of(row);
            const uint8_t* from = own_.output + own_.rows_at + 4 * row;
            float* logits = own_.logits + row * own_.vocab;
            if (own_.head.codes) {
                read_rough_row(row, from, logits);
                continue;
            }
            int32_t most = INT32_MIN;
            for (int64_t id = 0; id < own_.vocab; ++id) most = std::max(most, integer(from + id * own_.row_bytes));
            const auto top = static_cast<float>(static_cast<double>(most) * unit);
            for (int64_t id = 0; id < own_.vocab; ++id) logits[id] = as_float(integer(from + id * own_.row_bytes), unit, most, top);
        }
    }

    // Candidates have the logits of the int8 head, and other ids the rough ones, lowered together below every candidate's.
    void read_rough_row(int64_t row, const uint8_t* from, float* logits) {
        Token tokens[kMostFound];
        const int64_t count = std::min(own_.top_k, own_.vocab);
        find(row, count, tokens);
        const Rescoring again = rescoring(row);
        const double unit = unit_of(row);
        const int64_t most = tokens[0].integer, below = tokens[count - 1].integer - 1;
        const auto top = static_cast<float>(static_cast<double>(most) * unit);
        std::vector<bool> found(static_cast<size_t>(own_.vocab));
        for (const Token* token = tokens; token < tokens + count; ++token) found[static_cast<size_t>(token->id)] = true;
        int64_t highest = below;
        for (int64_t id = 0; id < own_.vocab; ++id)
            if (!found[static_cast<size_t>(id)]) highest = std::max(highest, again.aligned(integer(from + id * own_.row_bytes)));
        for (int64_t id = 0; id < own_.vocab; ++id)
            logits[id] = as_float(again.aligned(integer(from + id * own_.row_bytes)) - (highest - below), unit, most, top);
        for (const Token* token = tokens; token < tokens + count; ++token) logits[token->id] = as_float(token->integer, unit, most, top);
    }

    static int32_t integer(const uint8_t* from) {
        int32_t value;
        std::memcpy(&value, from, sizeof(value));
        return value;
    }

    AcceleratorArguments& own_;
};

// Calls a function; returns 0, or 1 with the reason in `failure`.
template <class Function>
int32_t succeeds(AcceleratorArguments& arguments, const Function& function) {
    try {
        function();
    } catch (const Failed& failed) {
        arguments.failure = static_cast<int64_t>(failed.why);
        return 1;
    }
    return 0;
}

// Returns whether items fit into the input buffer, and begin with a piece of a port or within one.
bool holds(const AcceleratorArguments& own, int64_t start, int64_t count) {
    return start >= 0 && start % std::min(own.item_bytes, own.port_bytes) == 0 && start + count * own.item_bytes <= own.input_bytes;
}

bool is_power(int64_t number) { return number > 0 && !(number & (number - 1)); }

}  // namespace

const char* accelerator_fault(const AcceleratorArguments& arguments) {
    const AcceleratorArguments& own = arguments;
    if (!own.registers && (!own.read || !own.write || !own.wait)) return "registers are neither mapped nor called";
    if (own.cache_instructions && !kCacheInstructions) return "this processor has no instructions for its cache";
    if (!own.wait && !(own.poll_seconds > 0 && own.poll_seconds < 1)) return "the time between two looks is not 0 to 1 s";
    if (!(own.patience_seconds > 0 && own.clock_hz > 0 && own.per_unit > 0)) return "a time or a unit is not positive";
    if (own.slots < 1 || own.slots > kMostSlots || own.turns < 0 || own.turns > kMostTurns || own.pairs < 0 || own.width < 1)
        return "the rows of a pass are out of range";
    if (!own.places || !is_power(own.port_bytes) || !is_power(own.item_bytes) || own.port_bytes < 4 || own.item_bytes < 4 * own.slots ||
        !holds(own, own.rows_start, own.width) || !holds(own, own.angles_start[0], own.turns > 0 ? own.pairs : 0) ||
        !holds(own, own.angles_start[1], own.turns > 1 ? own.pairs : 0))
        return "the layout of the input buffer is out of range";
    if (own.vocab < 1 || own.ids < 1 || own.ids > own.vocab || own.top_k < 0 || std::min(own.top_k, own.vocab) > kMostFound ||
        own.likeliest < 0 || own.likeliest > own.top_k || own.row_bytes < 4 * own.slots)
        return "the layout of the output buffer is out of range";
    if (own.head.codes && (!own.head.mantissa || own.head.width < 1 || own.head.pre_shift < 0 || own.head.pre_shift > 7 ||
                           own.head.coarser < -31 || own.head.coarser > 31 || own.head.norm_at < own.rows_at ||
                           own.head.norm_bytes < own.head.width * own.row_bytes || own.top_k < 1))
        return "the int8 head of a rough one is out of range";
    return nullptr;
}

int32_t accelerator_submit(void* session, int64_t rows, int64_t) {
    auto& arguments = *static_cast<AcceleratorArguments*>(session);
    return succeeds(arguments, [&] { Accelerator(arguments).start(rows); });
}

int32_t accelerator_wait(void* session) {
    auto& arguments = *static_cast<AcceleratorArguments*>(session);
    return succeeds(arguments, [&] { Accelerator(arguments).finish(); });
}

int32_t accelerator_move(const int64_t*, int64_t, void* session, const int32_t*, int64_t, int64_t, int64_t start, const int32_t* nodes,
                         int64_t count) {
    auto& arguments = *static_cast<AcceleratorArguments*>(session);
    return succeeds(arguments, [&] { Accelerator(arguments).commit(start, nodes, count, arguments.sequences[0]); });
}

void accelerator_settle(void* cache) {
    auto& arguments = *static_cast<AcceleratorArguments*>(cache);
    if (arguments.failure) return;  // the accelerator may be another driver's
    succeeds(arguments, [&] { Accelerator(arguments).settle(); });
}

}  // namespace edgedec
