// AXI ports in front of a controller, clock by clock.
#pragma once

#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "controller.hpp"
#include "ports.hpp"

namespace edgedec::ddr {

class Memory final : public Ports {
public:
    explicit Memory(const Parameters& parameters);

    void cycle(const PortIn* in) override;
    bool idle() const override;
    void archive(Archive& a) override;
    const Counts& counts() const { return controller_->counts(); }
    Controller& controller() { return *controller_; }

private:
    struct Command {
        uint64_t address;
        uint32_t beats;
        int64_t from;  // clock from which its lines may leave
    };
    struct Line {
        uint64_t address;  // address of its first beat
        uint32_t beats;
        bool last;
        int64_t ready;
    };
    struct WriteLine {
        uint64_t address;
        bool last;
        uint8_t response;  // response of the whole burst, where last
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
    };

    void transfer(int number, const PortIn& in);
    void take_write_beat(int number, Port& port, const PortIn& in);
    void arbitrate();
    bool send_read(int number);
    bool send_write(int number);
    void drive(int number);

    const Parameters p_;
    std::vector<Port> ports_;
    std::unique_ptr<Controller> controller_;
    std::vector<int64_t> return_free_;  // clock for each port of the controller
    std::vector<std::vector<int>> members_;
    std::vector<size_t> turn_;
    size_t controller_turn_ = 0;
    int64_t granted_ = 0;
    int64_t phase_ = 0;
};

}  // namespace edgedec::ddr
