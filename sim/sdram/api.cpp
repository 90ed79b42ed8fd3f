// The C functions that edgedec.sim.sdram.model calls.
#include "model.hpp"

#define EXPORT extern "C" __attribute__((visibility("default")))

using edgedec::sdram::Model;
using edgedec::sdram::Parameters;
using edgedec::sdram::Pins;

namespace {
Model& of(void* handle) { return *static_cast<Model*>(handle); }
}  // namespace

EXPORT void* edgedec_sdram_open(const int64_t* parameters) {
    Parameters p;
    std::memcpy(&p, parameters, sizeof p);
    return new Model(p);
}
EXPORT void edgedec_sdram_close(void* handle) { delete &of(handle); }
EXPORT uint16_t* edgedec_sdram_words(void* handle) { return of(handle).words(); }
// Pins at a rising edge; the data that the chip then drives, or -1 if it drives none.
EXPORT int64_t edgedec_sdram_cycle(void* handle, const uint32_t* pins) {
    Pins p;
    std::memcpy(&p, pins, sizeof p);
    uint32_t answer = 0;
    return of(handle).cycle(p, &answer) ? static_cast<int64_t>(answer) : -1;
}
EXPORT const char* edgedec_sdram_violation(void* handle) { return of(handle).violation().c_str(); }
EXPORT void edgedec_sdram_counts(void* handle, int64_t* out) {
    const Model& m = of(handle);
    const int64_t counts[] = {m.now(), m.reads(), m.writes(), m.refreshes(), m.activates(), m.busy(), m.ready()};
    std::memcpy(out, counts, sizeof counts);
}
