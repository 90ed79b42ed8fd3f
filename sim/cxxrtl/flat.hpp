// A memory of one rate for all its ports together, whatever the addresses, or of no limit at all; one latency.
#pragma once

#include <deque>
#include <utility>
#include <vector>

#include "ports.hpp"

namespace edgedec::sim {

class FlatMemory final : public ddr::Ports {
public:
    // bytes_per_s 0: every port moves a beat of each direction in every cycle. latency: cycles, at least 1, from an address
    // to the first beat, and from the last written beat to the answer.
    FlatMemory(int64_t ports, int64_t port_bytes, int64_t clock_hz, int64_t bytes_per_s, int64_t latency);

    void cycle(const ddr::PortIn* in) override;
    bool idle() const override;
    void archive(ddr::Archive& a) override;

private:
    struct Burst {
        uint64_t address;
        uint32_t beats;  // beats that are left
        int64_t from;    // cycle
    };
    struct Port {
        std::deque<Burst> reads, writes;
        std::deque<std::pair<int64_t, uint8_t>> responses;
        bool paid = false;  // for the next beat that is written
        uint8_t write_response = ddr::kOkay;
    };

    void transfer(int number, const ddr::PortIn& in);
    void take_write_beat(int number, Port& port, const ddr::PortIn& in);
    void drive(int number);
    bool pay();

    // Credit counts bytes times clock_hz: nothing is rounded, so the rate is exact.
    const int64_t port_bytes_, beat_cost_, rate_, most_, latency_;
    int64_t credit_ = 0;
    std::vector<Port> ports_;
    size_t first_ = 0;  // port whose turn it is
};

}  // namespace edgedec::sim
