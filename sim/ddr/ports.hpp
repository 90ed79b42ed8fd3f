// AXI ports over bytes that somebody else owns: what any memory model has, whatever its timing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "archive.hpp"

namespace edgedec::ddr {

constexpr int kMostPortBytes = 64;
enum Response : uint8_t { kOkay = 0, kSlaveError = 2, kDecodeError = 3 };

// The signals that a master drives on one port. They are mirrored by edgedec.sim.ddr.memory.
struct PortIn {
    uint64_t ar_address, aw_address, w_strobe;
    uint32_t ar_beats, aw_beats;
    uint8_t ar_valid, aw_valid, w_valid, w_last, r_ready, b_ready, padding[2];
    uint8_t w_data[kMostPortBytes];
};

// The signals that the memory drives on it; a function of state alone, so no path leads from a master's outputs to its inputs.
struct PortOut {
    uint8_t ar_ready, aw_ready, w_ready, r_valid, r_last, r_response, b_valid, b_response;
    uint8_t r_data[kMostPortBytes];
};

static_assert(sizeof(PortIn) == 104 && sizeof(PortOut) == 72, "memory.py mirrors them");

class Ports {
public:
    virtual ~Ports() = default;

    // The bytes at address .. address + size; without any, reads give zeros everywhere.
    void attach(uint8_t* bytes, uint64_t address, uint64_t size);
    // From now on an access in begin .. end answers with ``response``, and a write of it is dropped.
    void inject_error(uint64_t begin, uint64_t end, uint8_t response, bool reads, bool writes);
    // From cycle ``first`` on, for ``cycles`` of them, a port takes nothing and gives nothing new.
    void inject_stall(int port, int64_t first, int64_t cycles);

    const PortOut& out(int port) const { return out_[static_cast<size_t>(port)]; }
    // One rising edge: what is valid and ready is transferred; then the outputs of the next cycle stand in ``out``.
    virtual void cycle(const PortIn* in) = 0;
    virtual bool idle() const = 0;
    // All that a later cycle depends on but the bytes, the injected faults and the parameters.
    virtual void archive(Archive& a) { a(cycle_, out_); }

    int64_t cycles() const { return cycle_; }
    const std::string& violation() const { return violation_; }  // the first; empty without

protected:
    Ports(int64_t ports, int64_t port_bytes);

    PortOut& output(int port) { return out_[static_cast<size_t>(port)]; }
    bool stalled(int port) const;
    void complain(int port, const std::string& what);
    // False, and said in ``violation``, where AXI forbids it; such a burst is never answered.
    bool check_burst(int port, const std::string& channel, uint64_t address, uint32_t beats);
    // One beat into a port's R channel.
    void read_beat(int port, uint64_t address, bool last);
    // One beat of a port's W channel; its response.
    uint8_t write_beat(const PortIn& in, uint64_t address);

    int64_t cycle_ = 0;

private:
    struct Range {
        uint64_t begin, end;
        uint8_t response;
        bool reads, writes;
    };
    struct Stall {
        int port;
        int64_t first, end;
    };

    uint8_t response(uint64_t address, bool write) const;

    const uint64_t width_;  // bytes of a beat
    std::vector<PortOut> out_;
    std::vector<Range> errors_;
    std::vector<Stall> stalls_;
    uint8_t* bytes_ = nullptr;
    uint64_t base_ = 0, size_ = 0;
    std::string violation_;
};

}  // namespace edgedec::ddr
