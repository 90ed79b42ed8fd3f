// AXI ports in front of a controller, clock by clock, over bytes that somebody else owns.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "controller.hpp"

namespace edgedec::ddr {

constexpr int kMostPortBytes = 64;
enum Response : uint8_t { kOkay = 0, kSlaveError = 2, kDecodeError = 3 };

// What a master drives on one port. Mirrored by edgedec.sim.ddr.memory.
struct PortIn {
    uint64_t ar_address, aw_address, w_strobe;
    uint32_t ar_beats, aw_beats;
    uint8_t ar_valid, aw_valid, w_valid, w_last, r_ready, b_ready, padding[2];
    uint8_t w_data[kMostPortBytes];
};

// What the memory drives on it; a function of state alone, so no path leads from a master's outputs to its inputs.
struct PortOut {
    uint8_t ar_ready, aw_ready, w_ready, r_valid, r_last, r_response, b_valid, b_response;
    uint8_t r_data[kMostPortBytes];
};

static_assert(sizeof(PortIn) == 104 && sizeof(PortOut) == 72, "memory.py mirrors them");

class Memory {
public:
    explicit Memory(const Parameters& parameters);

    // The bytes at address .. address + size; without any, reads give zeros everywhere.
    void attach(uint8_t* bytes, uint64_t address, uint64_t size);
    // From now on an access in begin .. end answers with ``response``, and a write of it is dropped.
    void inject_error(uint64_t begin, uint64_t end, uint8_t response, bool reads, bool writes);
    // From cycle ``first`` on, for ``cycles`` of them, a port takes nothing and gives nothing new.
    void inject_stall(int port, int64_t first, int64_t cycles);

    const PortOut& out(int port) const { return ports_[static_cast<size_t>(port)].out; }
    // One rising edge: what is valid and ready is transferred; then the outputs of the next cycle stand in ``out``.
    void cycle(const PortIn* in);

    int64_t cycles() const { return cycle_; }
    const Counts& counts() const { return controller_->counts(); }
    Controller& controller() { return *controller_; }
    bool idle() const;
    const std::string& violation() const { return violation_; }  // the first; empty without

private:
    struct Command {
        uint64_t address;
        uint32_t beats;
        int64_t from;  // clock from which its lines may leave
    };
    struct Line {
        uint64_t address;  // of its first beat
        uint32_t beats;
        bool last;
        int64_t ready;
    };
    struct WriteLine {
        uint64_t address;
        bool last;
        uint8_t response;  // of the whole burst, where last
        int64_t from;
    };
    struct Port {
        std::deque<Command> reads, writes;
        std::deque<Line> lines;  // in flight or waiting to be taken, in order
        uint32_t first_slot = 0;
        int64_t entries = 0;  // lines that wait in the controller
        std::deque<WriteLine> write_lines;
        std::deque<std::pair<int64_t, uint8_t>> responses;
        uint32_t write_beat = 0;
        uint8_t write_response = kOkay;
        PortOut out{};
    };
    struct Range {
        uint64_t begin, end;
        uint8_t response;
        bool reads, writes;
    };
    struct Stall {
        int port;
        int64_t first, end;
    };

    void transfer(int number, const PortIn& in);
    void take_write_beat(int number, Port& port, const PortIn& in);
    void arbitrate();
    bool send_read(int number);
    bool send_write(int number);
    void drive(int number);
    bool stalled(int port) const;
    // False, and said in ``violation``, where AXI forbids it; such a burst is never answered.
    bool check_burst(int port, const std::string& channel, uint64_t address, uint32_t beats);
    uint8_t response(uint64_t address, bool write) const;
    void complain(int port, const std::string& what);

    const Parameters p_;
    std::vector<Port> ports_;
    std::unique_ptr<Controller> controller_;
    std::vector<int64_t> return_free_;  // of each port of the controller
    std::vector<std::vector<int>> members_;
    std::vector<size_t> turn_;
    size_t controller_turn_ = 0;
    int64_t granted_ = 0;
    std::vector<Range> errors_;
    std::vector<Stall> stalls_;
    uint8_t* bytes_ = nullptr;
    uint64_t base_ = 0, size_ = 0;
    int64_t cycle_ = 0, phase_ = 0;
    std::string violation_;
};

}  // namespace edgedec::ddr
