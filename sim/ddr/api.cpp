// The C functions that Python calls. A negative result: edgedec_ddr_error() says why.
#include <exception>
#include <string>

#include "memory.hpp"
#include "reader.hpp"
#include "traffic.hpp"

using namespace edgedec::ddr;

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {
thread_local std::string error;

int refuse(const std::string& what) {
    error = what;
    return -1;
}
}  // namespace

EXPORT const char* edgedec_ddr_error() { return error.c_str(); }
EXPORT int edgedec_ddr_parameters() { return kParameters; }

EXPORT void* edgedec_ddr_open(const int64_t* values) {
    Parameters parameters;
    __builtin_memcpy(&parameters, values, sizeof parameters);
    return new Memory(parameters);
}

EXPORT void edgedec_ddr_close(void* memory) { delete static_cast<Memory*>(memory); }

EXPORT void edgedec_ddr_attach(void* memory, uint8_t* bytes, uint64_t address, uint64_t size) {
    static_cast<Memory*>(memory)->attach(bytes, address, size);
}

EXPORT void edgedec_ddr_inject_error(void* memory, uint64_t begin, uint64_t end, int response, int reads, int writes) {
    static_cast<Memory*>(memory)->inject_error(begin, end, static_cast<uint8_t>(response), reads, writes);
}

EXPORT void edgedec_ddr_inject_stall(void* memory, int port, int64_t first, int64_t cycles) {
    static_cast<Memory*>(memory)->inject_stall(port, first, cycles);
}

EXPORT void edgedec_ddr_out(void* memory, int ports, PortOut* out) {
    for (int i = 0; i < ports; ++i) out[i] = static_cast<Memory*>(memory)->out(i);
}

EXPORT int edgedec_ddr_cycle(void* memory, int ports, const PortIn* in, PortOut* out) {
    Memory& m = *static_cast<Memory*>(memory);
    m.cycle(in);
    edgedec_ddr_out(memory, ports, out);
    return m.violation().empty() ? 0 : refuse(m.violation());
}

EXPORT int64_t edgedec_ddr_cycles(void* memory) { return static_cast<Memory*>(memory)->cycles(); }
EXPORT int edgedec_ddr_idle(void* memory) { return static_cast<Memory*>(memory)->idle(); }

EXPORT void edgedec_ddr_counts(void* memory, int64_t* out) {
    static_assert(sizeof(Counts) == 6 * sizeof(int64_t));
    __builtin_memcpy(out, &static_cast<Memory*>(memory)->counts(), sizeof(Counts));
}

EXPORT void edgedec_ddr_record(void* memory) { static_cast<Memory*>(memory)->controller().record(); }

// Returns the number of commands; as many as fit go to ``out``.
EXPORT int64_t edgedec_ddr_commands(void* memory, int64_t* out, int64_t most) {
    static_assert(sizeof(Command) == 4 * sizeof(int64_t));
    const auto& commands = static_cast<Memory*>(memory)->controller().commands();
    const int64_t count = static_cast<int64_t>(commands.size());
    const int64_t copied = count < most ? count : most;
    if (copied) __builtin_memcpy(out, commands.data(), static_cast<size_t>(copied) * sizeof(Command));
    return count;
}

namespace {
// The cycles that ``traffic`` took, or why it did not end.
template <class Traffic>
int64_t ended(Memory& memory, int64_t limit, Traffic traffic) {
    try {
        const int64_t cycles = traffic();
        if (!memory.violation().empty()) return refuse(memory.violation());
        if (cycles < 0) return refuse("not finished after " + std::to_string(limit) + " cycles");
        return cycles;
    } catch (const std::exception& failure) {
        return refuse(failure.what());
    }
}
}  // namespace

EXPORT int64_t edgedec_ddr_run(void* memory, int ports, int port_bytes, Stream* streams, int count, int64_t limit) {
    Memory& m = *static_cast<Memory*>(memory);
    return ended(m, limit, [&] { return run(m, ports, port_bytes, streams, count, limit); });
}

EXPORT int64_t edgedec_ddr_read(void* memory, Reader* reader, Range* ranges, int64_t count, const Write* writes,
                                int64_t write_count, Other* other, int64_t port_hz, int64_t limit) {
    Memory& m = *static_cast<Memory*>(memory);
    return ended(m, limit, [&] { return read(m, *reader, ranges, count, writes, write_count, other, port_hz, limit); });
}
