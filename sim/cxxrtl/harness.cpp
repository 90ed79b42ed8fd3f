// The C functions that Python calls: one design, clocked against a memory at its AXI ports. A negative result:
// edgedec_top_error() says why. top.hpp is written beside the design: its class, and the names of its ports; and memories.hpp,
// with those of its memories.
#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <fstream>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <cxxrtl/cxxrtl_vcd.h>

#include "contracts.hpp"
#include "flat.hpp"
#include "memories.hpp"
#include "memory.hpp"
#include "top.hpp"

#define EXPORT extern "C" __attribute__((visibility("default")))

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "beats are copied as they lie in a value's words");

namespace {

using edgedec::ddr::Archive;
using edgedec::ddr::PortIn;
using edgedec::ddr::PortOut;
using edgedec::ddr::Ports;

constexpr int kPortBytes = EDGEDEC_PORT_BYTES;
constexpr int kReads = EDGEDEC_READS;
constexpr int kWritePort = 0;             // port whose write channels the write master has
constexpr int64_t kAnswerCycles = 10000;  // most cycles of a register access
constexpr int kIncrementing = 1;          // AxBURST
constexpr size_t kWaveBytes = 1 << 20;    // bytes of a waveform before they are written
constexpr int kResetCycles = 64;          // cycles of a reset after power-up; more than the stages of any reset

thread_local std::string error;

int refuse(const std::string& what) {
    error = what;
    return -1;
}

template <size_t N>
const cxxrtl::value<N>& now(const cxxrtl::value<N>& port) { return port; }
template <size_t N>
const cxxrtl::value<N>& now(const cxxrtl::wire<N>& port) { return port.curr; }

template <class Port>
uint64_t number(const Port& port) { return now(port).template get<uint64_t>(); }
template <class Port>
bool bit(const Port& port) { return now(port).data[0] & 1; }

template <size_t N>
void put(cxxrtl::value<N>& port, uint64_t number) { port.template set<uint64_t>(number); }

// True if a master's bursts are of the one kind that it makes: whole beats, ascending.
template <class Size, class Burst>
bool plain(const Size& size, const Burst& burst) {
    return 1 << number(size) == kPortBytes && number(burst) == kIncrementing;
}

struct Settings {
    const int64_t* ddr;  // parameters, or null for a FlatMemory
    int64_t clock_hz, bytes_per_s, latency;
    uint8_t* bytes;
    uint64_t address, size;
};

std::unique_ptr<Ports> make_memory(const Settings& s) {
    std::unique_ptr<Ports> memory;
    if (s.ddr) {
        edgedec::ddr::Parameters parameters;
        std::memcpy(&parameters, s.ddr, sizeof parameters);
        memory = std::make_unique<edgedec::ddr::Memory>(parameters);
    } else {
        memory = std::make_unique<edgedec::sim::FlatMemory>(kReads, kPortBytes, s.clock_hz, s.bytes_per_s, s.latency);
    }
    memory->attach(s.bytes, s.address, s.size);
    return memory;
}

// Mirrored by edgedec.sim.cxxrtl.simulation; only int64_t.
struct Counts {
    int64_t write_beats, write_bytes, write_bursts;
    int64_t read_beats[kReads], read_bursts[kReads];
};

class Simulation {
public:
    explicit Simulation(const Settings& settings) : memory_(make_memory(settings)) {
        // One evaluation per cycle is enough where it settles all of the design: it yields what the outputs are before
        // the edge and what the registers are after it. A design with feedback has to settle before the edge.
        one_pass_ = top_.eval();
        top_.step();
        contracts_ = std::make_unique<edgedec::sim::Contracts>(items());
    }

    // Cycles until the interrupt was high, that one included, or ``most``.
    int64_t run(int64_t most) {
        int64_t done = 0;
        for (bool stop = false; done < most && !stop && ok(); ++done) {
            cycle();
            stop = interrupt_;
        }
        if (ok()) fault_ = contracts_->broken();
        return ok() ? done : refuse(fault());
    }

    int write(uint32_t offset, uint32_t value) {
        auto& t = top_;
        put(t.p_registers____awaddr, offset);
        put(t.p_registers____wdata, value);
        put(t.p_registers____wstrb, 0xf);
        put(t.p_registers____awvalid, 1);
        put(t.p_registers____wvalid, 1);
        put(t.p_registers____bready, 1);
        for (int64_t i = 0; i < kAnswerCycles && ok(); ++i) {
            evaluate();
            const bool address = bit(t.p_registers____awready), data = bit(t.p_registers____wready);
            const bool answered = bit(t.p_registers____bvalid);
            const auto response = number(t.p_registers____bresp);
            finish();
            if (address) put(t.p_registers____awvalid, 0);
            if (data) put(t.p_registers____wvalid, 0);
            if (!answered) continue;
            put(t.p_registers____bready, 0);
            return response ? refuse("a register write was answered " + std::to_string(response)) : 0;
        }
        return refuse(ok() ? "a register write was not answered" : fault());
    }

    int read(uint32_t offset, uint32_t* value) {
        auto& t = top_;
        put(t.p_registers____araddr, offset);
        put(t.p_registers____arvalid, 1);
        put(t.p_registers____rready, 1);
        for (int64_t i = 0; i < kAnswerCycles && ok(); ++i) {
            evaluate();
            const bool address = bit(t.p_registers____arready), answered = bit(t.p_registers____rvalid);
            const auto response = number(t.p_registers____rresp);
            if (answered) *value = static_cast<uint32_t>(number(t.p_registers____rdata));
            finish();
            if (address) put(t.p_registers____arvalid, 0);
            if (!answered) continue;
            put(t.p_registers____rready, 0);
            return response ? refuse("a register read was answered " + std::to_string(response)) : 0;
        }
        return refuse(ok() ? "a register read was not answered" : fault());
    }

    // Gives the state of the design random values, as if no bitstream and no reset had set it, and then holds the reset. The
    // memory model does not see these cycles. Registers of parts whose names begin with one of ``kept`` stay as they are, and
    // so do read-only memories, which are those that hold something at the start. Returns the bits of registers and of
    // memories that became random, of registers that were kept, and of read-only memories.
    std::array<int64_t, 4> scramble(uint64_t seed, const std::vector<std::string>& kept) {
        std::mt19937 random(static_cast<uint32_t>(seed));
        std::array<int64_t, 4> bits{};
        for (auto& [name, item] : state()) {
            const bool memory = item.type == CXXRTL_MEMORY;
            const size_t words = (item.width + 31) / 32, count = memory ? item.depth : 1;
            const auto begins = [&name = name](const std::string& part) { return name.rfind(part, 0) == 0; };
            const bool stays = memory ? std::any_of(item.curr, item.curr + words * count, [](uint32_t word) { return word != 0; })
                                      : std::any_of(kept.begin(), kept.end(), begins);
            bits[size_t{memory} + 2 * size_t{stays}] += static_cast<int64_t>(item.width * count);
            for (size_t word = 0; word < words * count && !stays; ++word) {
                const size_t used = item.width - word % words * 32;
                item.curr[word] = static_cast<uint32_t>(random()) & (used < 32 ? (1u << used) - 1 : ~0u);
                if (!memory) item.next[word] = item.curr[word];
            }
        }
        wake(top_, 0);
        hold_reset(top_, true, 0);
        for (int i = 0; i < kResetCycles; ++i) {
            evaluate();
            if (one_pass_) {
                top_.commit();
            } else {
                put(top_.p_clk, 1);
                top_.step();
            }
        }
        hold_reset(top_, false, 0);
        contracts_->forget();
        wake(top_, 0);
        return bits;
    }

    Ports& memory() { return *memory_; }
    size_t contracts() const { return contracts_->count(); }
    bool interrupt() const { return interrupt_; }
    const Counts& counts() const { return counts_; }
    void settle_first() { one_pass_ = false; }

    // Keeps, from now on, all bits of a port in each cycle in which its lowest one is high. Returns its 32-bit words, or 0.
    size_t record(const std::string& port) {
        const auto found = items().table.find(port);
        if (found == items().table.end() || found->second.size() != 1 || !found->second[0].curr) return 0;
        const auto& item = found->second[0];
        recordings_.push_back({item.curr, (item.width + 31) / 32, {}});
        return recordings_.back().words;
    }

    std::vector<uint32_t>& recorded(size_t number) { return recordings_.at(number).kept; }

    const cxxrtl::debug_items& items() {
        if (items_.table.empty()) top_.debug_info(&items_, nullptr, "");
        return items_;
    }

    // Everything that a later cycle depends on, but the memory's bytes, injected faults and recordings. The design is saved
    // as it lies in memory, for the library that it is read by again is this one; its memories are elsewhere.
    void archive(Archive& a) {
        auto* begin = reinterpret_cast<uint8_t*>(&top_);
        size_t at = sizeof(cxxrtl::module);  // after the address of the class's functions
#define PLACE(NAME)                                                                                  \
    {                                                                                                \
        const auto skip = static_cast<size_t>(reinterpret_cast<uint8_t*>(&top_.NAME) - begin);        \
        a.raw(begin + at, skip - at);                                                                \
        at = skip + sizeof top_.NAME;                                                                \
        a.raw(top_.NAME.data.get(), top_.NAME.depth * sizeof top_.NAME.data[0]);                      \
    }
        EDGEDEC_MEMORIES(PLACE)
#undef PLACE
        a.raw(begin + at, sizeof top_ - at);
        a(interrupt_, in_, counts_);
        memory_->archive(a);
    }

    // From now on writes the signals of each cycle of [from, to) into a file, if their names begin with one of ``scopes``.
    bool wave(const std::string& path, int64_t from, int64_t to, int64_t period_ps, const std::vector<std::string>& scopes) {
        wave_ = std::make_unique<Wave>();
        wave_->file.open(path, std::ios::binary);
        if (!wave_->file) return false;
        wave_->from = from, wave_->to = to, wave_->period_ps = static_cast<uint64_t>(period_ps);
        wave_->writer.timescale(1, "ps");
        wave_->writer.add(items(), [&](const std::string& name, const cxxrtl::debug_item& item) {
            const auto begins = [&](const std::string& scope) { return !name.compare(0, scope.size(), scope); };
            return item.type != CXXRTL_MEMORY && std::any_of(scopes.begin(), scopes.end(), begins);
        });
        return true;
    }

    // The number of cycles that were written; the file is complete.
    int64_t end_wave() {
        if (!wave_) return 0;
        wave_->flush();
        const int64_t count = wave_->file.good() ? wave_->count : -1;
        wave_.reset();
        return count;
    }

private:
    struct Wave {
        std::ofstream file;
        cxxrtl::vcd_writer writer;
        int64_t from = 0, to = 0, count = 0;
        uint64_t period_ps = 0;

        void flush() {
            file << writer.buffer;
            file.flush();
            writer.buffer.clear();
        }
    };

    // The values of this cycle: the edge that ends it has not been yet.
    void write_wave() {
        Wave& wave = *wave_;
        const int64_t cycle = memory_->cycles();
        if (cycle < wave.from || cycle >= wave.to) return;
        wave.writer.sample(static_cast<uint64_t>(cycle) * wave.period_ps);
        ++wave.count;
        if (wave.writer.buffer.size() > kWaveBytes) wave.flush();
    }

    // Registers and memories, without the registers of assertions. Each has one name here; its others are aliases.
    std::vector<std::pair<std::string, cxxrtl::debug_item>> state() {
        std::vector<std::pair<std::string, cxxrtl::debug_item>> found;
        for (const auto& [name, parts] : items().table)
            for (const auto& part : parts)
                if (!contracts_->has(name) &&
                    (part.type == CXXRTL_MEMORY || (part.type == CXXRTL_WIRE && part.flags & CXXRTL_DRIVEN_SYNC)))
                    found.emplace_back(name, part);
        return found;
    }

    // Lets a divided cycle evaluate everything once, because state was changed from outside. 0 prefers the first one.
    template <class Top>
    static auto wake(Top& top, int) -> decltype(top.last_edges, void()) { top.last_edges = ~0u; }
    template <class Top>
    static void wake(Top&, long) {}

    // Sets the reset, if the design has one.
    template <class Top>
    static auto hold_reset(Top& top, bool high, int) -> decltype(top.p_rst, void()) { put(top.p_rst, high); }
    template <class Top>
    static void hold_reset(Top&, bool, long) {}

    bool ok() const { return fault_.empty() && memory_->violation().empty(); }
    const std::string& fault() const { return fault_.empty() ? memory_->violation() : fault_; }

    void cycle() {
        evaluate();
        finish();
    }

    // Inputs, then the outputs of this cycle; also the registers of the next one, but nobody sees them yet.
    void evaluate() {
#define DRIVE(INDEX, NAME)                                                                            \
    {                                                                                                 \
        const PortOut& o = memory_->out(INDEX);                                                       \
        put(top_.p_##NAME##____arready, o.ar_ready);                                                  \
        put(top_.p_##NAME##____rvalid, o.r_valid);                                                    \
        put(top_.p_##NAME##____rlast, o.r_last);                                                      \
        put(top_.p_##NAME##____rresp, o.r_response);                                                  \
        std::memcpy(top_.p_##NAME##____rdata.data, o.r_data, kPortBytes);                             \
    }
        EDGEDEC_READ_PORTS(DRIVE)
#undef DRIVE
        const PortOut& o = memory_->out(kWritePort);
        put(top_.p_write____awready, o.aw_ready);
        put(top_.p_write____wready, o.w_ready);
        put(top_.p_write____bvalid, o.b_valid);
        put(top_.p_write____bresp, o.b_response);
        if (one_pass_) {
            put(top_.prev_p_clk, 0);
            put(top_.p_clk, 1);
            top_.eval();
        } else {
            put(top_.p_clk, 0);
            top_.step();
        }
    }

    // Gives the memory what the masters drive; then comes the rising edge.
    void finish() {
#define TAKE(INDEX, NAME)                                                                              \
    {                                                                                                  \
        PortIn& i = in_[INDEX];                                                                        \
        i.r_ready = bit(top_.p_##NAME##____rready);                                                    \
        counts_.read_beats[INDEX] += i.r_ready && memory_->out(INDEX).r_valid;                         \
        i.ar_valid = bit(top_.p_##NAME##____arvalid);                                                  \
        if (i.ar_valid) {                                                                              \
            i.ar_address = number(top_.p_##NAME##____araddr);                                          \
            i.ar_beats = static_cast<uint32_t>(number(top_.p_##NAME##____arlen)) + 1;                  \
            counts_.read_bursts[INDEX] += memory_->out(INDEX).ar_ready;                                \
            if (!plain(top_.p_##NAME##____arsize, top_.p_##NAME##____arburst)) not_plain(INDEX, "AR"); \
        }                                                                                              \
    }
        EDGEDEC_READ_PORTS(TAKE)
#undef TAKE
        for (auto& r : recordings_)
            if (*r.now & 1) r.kept.insert(r.kept.end(), r.now, r.now + r.words);
        if (wave_) write_wave();
        take_write();
        check_rules();
        interrupt_ = bit(top_.p_interrupt);
        memory_->cycle(in_);
        if (one_pass_) {
            top_.commit();
        } else {
            put(top_.p_clk, 1);
            top_.step();
        }
    }

    void take_write() {
        PortIn& i = in_[kWritePort];
        const PortOut& o = memory_->out(kWritePort);
        i.b_ready = bit(top_.p_write____bready);
        i.aw_valid = bit(top_.p_write____awvalid);
        if (i.aw_valid) {
            i.aw_address = number(top_.p_write____awaddr);
            i.aw_beats = static_cast<uint32_t>(number(top_.p_write____awlen)) + 1;
            counts_.write_bursts += o.aw_ready;
            if (!plain(top_.p_write____awsize, top_.p_write____awburst)) not_plain(kWritePort, "AW");
        }
        i.w_valid = bit(top_.p_write____wvalid);
        if (!i.w_valid || !o.w_ready) return;
        i.w_last = bit(top_.p_write____wlast);
        i.w_strobe = number(top_.p_write____wstrb);
        std::memcpy(i.w_data, now(top_.p_write____wdata).data, kPortBytes);
        ++counts_.write_beats;
        counts_.write_bytes += __builtin_popcountll(i.w_strobe);
    }

    // Reads what the monitors at the AXI ports see in this cycle; the first rule that was ever broken is kept.
    void check_rules() {
        const auto& seen = now(top_.p_violations);
        for (size_t word = 0; word < seen.chunks; ++word) {
            if (!seen.data[word] || !fault_.empty()) continue;
            const size_t bit = 32 * word + static_cast<size_t>(__builtin_ctz(seen.data[word]));
            fault_ = kMeanings[bit];
        }
    }

    void not_plain(int port, const std::string& channel) {
        fault_ = "port " + std::to_string(port) + ": " + channel + " is not of whole beats at ascending addresses";
    }

    edgedec_design::p_top top_;
    bool one_pass_ = false, interrupt_ = false;
    std::unique_ptr<Ports> memory_;
    PortIn in_[edgedec::ddr::kMostPorts] = {};
    Counts counts_{};
    struct Recording {
        const uint32_t* now;
        size_t words;
        std::vector<uint32_t> kept;
    };
    std::vector<Recording> recordings_;
    std::unique_ptr<Wave> wave_;
    std::string fault_;
    cxxrtl::debug_items items_;
    std::unique_ptr<edgedec::sim::Contracts> contracts_;
};

Simulation& of(void* handle) { return *static_cast<Simulation*>(handle); }

}  // namespace

EXPORT const char* edgedec_top_error() { return error.c_str(); }

// Read ports, bytes of a port, numbers of edgedec_top_counts, parameters of the memory model.
EXPORT void edgedec_top_shape(int64_t* out) {
    out[0] = kReads;
    out[1] = kPortBytes;
    out[2] = sizeof(Counts) / sizeof(int64_t);
    out[3] = edgedec::ddr::kParameters;
}

EXPORT void* edgedec_top_open(const int64_t* ddr, int64_t clock_hz, int64_t bytes_per_s, int64_t latency, uint8_t* bytes,
                              uint64_t address, uint64_t size) {
    try {
        return new Simulation({ddr, clock_hz, bytes_per_s, latency, bytes, address, size});
    } catch (const std::exception& failure) {
        refuse(failure.what());
        return nullptr;
    }
}

EXPORT void edgedec_top_close(void* handle) { delete static_cast<Simulation*>(handle); }
EXPORT int64_t edgedec_top_run(void* handle, int64_t most) { return of(handle).run(most); }
EXPORT int edgedec_top_write(void* handle, uint32_t offset, uint32_t value) { return of(handle).write(offset, value); }
EXPORT int edgedec_top_read(void* handle, uint32_t offset, uint32_t* value) { return of(handle).read(offset, value); }
EXPORT int64_t edgedec_top_cycles(void* handle) { return of(handle).memory().cycles(); }
EXPORT int edgedec_top_interrupt(void* handle) { return of(handle).interrupt(); }
EXPORT int64_t edgedec_top_contracts(void* handle) { return static_cast<int64_t>(of(handle).contracts()); }
EXPORT int edgedec_top_idle(void* handle) { return of(handle).memory().idle(); }
EXPORT void edgedec_top_counts(void* handle, int64_t* out) { std::memcpy(out, &of(handle).counts(), sizeof(Counts)); }
// For tests: evaluate twice a cycle, as a design with feedback needs it.
EXPORT void edgedec_top_settle_first(void* handle) { of(handle).settle_first(); }

// See Simulation::scramble; ``kept`` has a name a line. Gives its four numbers.
EXPORT void edgedec_top_scramble(void* handle, uint64_t seed, const char* kept, int64_t* out) {
    std::vector<std::string> names;
    std::istringstream lines(kept);
    for (std::string line; std::getline(lines, line);) names.push_back(line);
    const auto bits = of(handle).scramble(seed, names);
    std::copy(bits.begin(), bits.end(), out);
}

EXPORT void edgedec_top_inject_error(void* handle, uint64_t begin, uint64_t end, int response, int reads, int writes) {
    of(handle).memory().inject_error(begin, end, static_cast<uint8_t>(response), reads, writes);
}

EXPORT void edgedec_top_inject_stall(void* handle, int port, int64_t first, int64_t cycles) {
    of(handle).memory().inject_stall(port, first, cycles);
}

// A signal's bits, if ``out`` has room for them: 32 in a word; -1 if there is none of that name.
EXPORT int64_t edgedec_top_peek(void* handle, const char* name, uint32_t* out, int64_t words) {
    const auto& table = of(handle).items().table;
    const auto found = table.find(name);
    if (found == table.end()) return refuse("there is no such signal");
    const auto& parts = found->second;
    if (parts.size() != 1 || parts[0].type == CXXRTL_MEMORY || parts[0].type == CXXRTL_OUTLINE)
        return refuse("it is a memory, or has been optimized away");
    const auto bits = static_cast<int64_t>(parts[0].width);
    for (int64_t i = 0; i < (bits + 31) / 32 && i < words; ++i) out[i] = parts[0].curr[i];
    return bits;
}

// Begins to record a port; gives the 32-bit words of an item, or -1.
EXPORT int64_t edgedec_top_record(void* handle, const char* port) {
    const size_t words = of(handle).record(port);
    return words ? static_cast<int64_t>(words) : refuse("there is no such port to record");
}

// Returns the number of words of the n-th recording; with ``out`` they go there and are forgotten.
EXPORT int64_t edgedec_top_recorded(void* handle, int64_t number, uint32_t* out) {
    auto& kept = of(handle).recorded(static_cast<size_t>(number));
    const auto words = static_cast<int64_t>(kept.size());
    if (out) {
        std::copy(kept.begin(), kept.end(), out);
        kept.clear();
    }
    return words;
}

// Gives the number of bytes of the state; with ``out`` they go there.
EXPORT int64_t edgedec_top_save(void* handle, uint8_t* out) {
    Archive archive;
    of(handle).archive(archive);
    const auto& bytes = archive.bytes();
    if (out) std::memcpy(out, bytes.data(), bytes.size());
    return static_cast<int64_t>(bytes.size());
}

EXPORT int edgedec_top_restore(void* handle, const uint8_t* bytes, uint64_t size) {
    try {
        Archive archive(bytes, size);
        of(handle).archive(archive);
        return archive.ended() ? 0 : refuse("the saved state is of another design");
    } catch (const std::exception& failure) {
        return refuse(failure.what());
    }
}

// ``scopes``: the beginnings of names, one a line; a period is in picoseconds.
EXPORT int edgedec_top_wave(void* handle, const char* path, int64_t from, int64_t to, int64_t period_ps, const char* scopes) {
    std::vector<std::string> names;
    for (std::istringstream lines(scopes); lines;) {
        std::string name;
        if (std::getline(lines, name)) names.push_back(name);
    }
    if (names.empty()) names.emplace_back();  // one empty line: all of them
    return of(handle).wave(path, from, to, period_ps, names) ? 0 : refuse("it cannot be written");
}

EXPORT int64_t edgedec_top_end_wave(void* handle) { return of(handle).end_wave(); }

// Their names, one a line; valid until the next call.
EXPORT const char* edgedec_top_signals(void* handle) {
    thread_local std::string names;
    names.clear();
    for (const auto& [name, parts] : of(handle).items().table)
        if (parts.size() == 1 && parts[0].type != CXXRTL_MEMORY && parts[0].type != CXXRTL_OUTLINE) names += name + "\n";
    return names.c_str();
}
