// A UartSystem with its memory chip and the far end of its serial line; two clocks. design.h is written beside it.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <memory>
#include <string>

#include "design.h"
#include "model.hpp"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using edgedec::sdram::Model;
using edgedec::sdram::Parameters;
using edgedec::sdram::Pins;

template <size_t N>
uint32_t number(const cxxrtl::value<N>& port) { return port.data[0]; }
template <size_t N>
uint32_t number(const cxxrtl::wire<N>& port) { return port.curr.data[0]; }

class Board {
public:
    // Half periods of the clocks are not needed: an edge up, an edge down at once, in the order of time.
    Board(const Parameters& parameters, double clock_hz, double memory_hz, double baud)
        : chip_(parameters), ratio_(memory_hz / clock_hz), bit_(clock_hz / baud) {
        top_.p_receive.set<uint32_t>(1);
        top_.step();
    }

    int64_t run(int64_t cycles, const uint8_t* in, int64_t count, uint8_t* out, int64_t room) {
        to_send_.insert(to_send_.end(), in, in + count);
        int64_t said = 0;
        for (int64_t i = 0; i < cycles && chip_.violation().empty(); ++i) {
            for (ahead_ += ratio_; ahead_ >= 1; ahead_ -= 1) memory_edge();
            top_.p_receive.set<uint32_t>(line());
            top_.p_clk.set<uint32_t>(1);
            top_.step();
            top_.p_clk.set<uint32_t>(0);
            top_.step();
            const int byte = heard(number(top_.p_transmit));
            if (byte >= 0 && said < room) out[said++] = static_cast<uint8_t>(byte);
            ++now_;
        }
        return said;
    }

    Model& chip() { return chip_; }
    int64_t now() const { return now_; }
    bool sending() const { return !to_send_.empty(); }

private:
    void memory_edge() {
        const Pins pins{number(top_.p_memory____cke),   number(top_.p_memory____ras__n), number(top_.p_memory____cas__n),
                        number(top_.p_memory____we__n), number(top_.p_memory____bank),   number(top_.p_memory____address),
                        number(top_.p_memory____mask),  number(top_.p_memory____data__out),
                        number(top_.p_memory____data__drive)};
        uint32_t answer = 0xdead;
        if (!chip_.cycle(pins, &answer)) answer = 0xdead;
        top_.p_memory__clk.set<uint32_t>(1);
        top_.step();
        top_.p_memory____data__in.set<uint32_t>(answer);
        top_.p_memory__clk.set<uint32_t>(0);
        top_.step();
    }

    // The line to the board: idle high, start low, eight bits, stop high.
    uint32_t line() {
        if (to_send_.empty()) return 1;
        const int at = static_cast<int>(sent_++ / bit_);
        if (at >= 10) {
            to_send_.pop_front();
            sent_ = 0;
            return 1;
        }
        return at == 0 ? 0 : at == 9 ? 1 : to_send_.front() >> (at - 1) & 1;
    }

    // The line from the board, sampled in the middle of each bit.
    int heard(uint32_t level) {
        if (hearing_ < 0) {
            if (!level) hearing_ = 0, bits_ = 0, taken_ = 0;
            return -1;
        }
        ++hearing_;
        if (hearing_ < (taken_ + 0.5) * bit_) return -1;
        if (taken_ > 0 && taken_ < 9) bits_ |= level << (taken_ - 1);
        if (taken_++ < 9) return -1;
        hearing_ = -1;
        return level ? static_cast<int>(bits_) : -1;
    }

    edgedec_design::p_top top_;
    Model chip_;
    double ratio_, ahead_ = 0, bit_;
    std::deque<uint8_t> to_send_;
    int64_t sent_ = 0, hearing_ = -1, now_ = 0;
    uint32_t bits_ = 0;
    int taken_ = 0;
};

Board& of(void* handle) { return *static_cast<Board*>(handle); }

}  // namespace

EXPORT void* edgedec_board_open(const int64_t* parameters, double clock_hz, double memory_hz, double baud) {
    Parameters p;
    std::memcpy(&p, parameters, sizeof p);
    return new Board(p, clock_hz, memory_hz, baud);
}
EXPORT void edgedec_board_close(void* handle) { delete &of(handle); }
// So many cycles, with bytes to send; how many bytes came meanwhile.
EXPORT int64_t edgedec_board_run(void* handle, int64_t cycles, const uint8_t* in, int64_t count, uint8_t* out, int64_t room) {
    return of(handle).run(cycles, in, count, out, room);
}
EXPORT const char* edgedec_board_violation(void* handle) { return of(handle).chip().violation().c_str(); }
EXPORT int64_t edgedec_board_cycles(void* handle) { return of(handle).now(); }
EXPORT uint16_t* edgedec_board_words(void* handle) { return of(handle).chip().words(); }
EXPORT void edgedec_board_counts(void* handle, int64_t* out) {
    const Model& m = of(handle).chip();
    const int64_t counts[] = {m.now(), m.reads(), m.writes(), m.refreshes(), m.activates(), m.busy(), m.ready()};
    std::memcpy(out, counts, sizeof counts);
}
