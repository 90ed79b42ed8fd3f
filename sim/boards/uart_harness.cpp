// A system with its memory chip, if it has one, and the far end of its serial line. design.h is written beside it.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "contracts.hpp"
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

// A register at each pin, on the way out and on the way back: what the board has beside the system.
template <class T>
class Delay {
public:
    Delay(size_t cycles, const T& first) : kept_(cycles, first) {}
    T operator()(const T& next) {
        kept_.push_back(next);
        const T found = kept_.front();
        kept_.pop_front();
        return found;
    }

private:
    std::deque<T> kept_;
};

// True of a design that has pins for a memory, and a clock of it; the memory of others is inside.
template <class Top, class = void>
struct HasPins : std::false_type {};
template <class Top>
struct HasPins<Top, std::void_t<decltype(std::declval<Top&>().p_memory____cke)>> : std::true_type {};

// The rules that a design states; a netlist has none.
template <class Top>
edgedec::sim::Contracts contracts_of(Top& top) {
    cxxrtl::debug_items items;
    if constexpr (std::is_base_of_v<cxxrtl::module, Top>) top.debug_info(&items, nullptr, "");
    return edgedec::sim::Contracts(items);
}

class Board {
public:
    // ``registers``: at the pins of the memory, out and back together. ``late``, ``count``: quarters of a cycle by which the
    // memory's words arrive late, and for which they are valid.
    Board(const Parameters& parameters, double clock_hz, double memory_hz, double baud, int64_t registers, int64_t late,
          int64_t count)
        : chip_(parameters),
          ratio_(memory_hz / clock_hz),
          bit_(clock_hz / baud),
          out_(static_cast<size_t>(registers + 1) / 2, Pins{0, 1, 1, 1, 0, 0, 3, 0, 0}),
          back_(static_cast<size_t>(registers) / 2, 0xdead),
          late_(late),
          count_(count) {
        top_.p_receive.set<uint32_t>(1);
        // One evaluation for an edge is enough where it settles all of the design: it yields what the outputs are before
        // the edge and what the registers are after it. A design with feedback has to settle before the edge.
        one_pass_ = top_.eval();
        top_.step();
    }

    int64_t run(int64_t cycles, const uint8_t* in, int64_t count, uint8_t* out, int64_t room) {
        to_send_.insert(to_send_.end(), in, in + count);
        int64_t said = 0;
        for (int64_t i = 0; i < cycles && chip_.violation().empty(); ++i) {
            for (ahead_ += ratio_; ahead_ >= 1; ahead_ -= 1) memory_edge(top_);
            top_.p_receive.set<uint32_t>(line());
            before_edge(top_.p_clk, top_.prev_p_clk);
            const uint32_t level = number(top_.p_transmit);
            after_edge(top_.p_clk);
            const int byte = heard(level);
            if (byte >= 0 && said < room) out[said++] = static_cast<uint8_t>(byte);
            ++now_;
        }
        return said;
    }

    // The rule that the design or the memory's master broke, or nothing.
    const std::string& violation() {
        if (violation_.empty()) violation_ = chip_.violation();
        if (violation_.empty()) violation_ = contracts_.broken();
        return violation_;
    }

    Model& chip() { return chip_; }
    int64_t now() const { return now_; }
    bool sending() const { return !to_send_.empty(); }

private:
    // All outputs are as they are when the clock rises. In one pass the clocks themselves stay high, so that what is beside
    // the edge stands still.
    template <class Clock>
    void before_edge(Clock& clock, Clock& before) {
        if (!one_pass_) {
            top_.step();
            return;
        }
        before.template set<uint32_t>(0);
        clock.template set<uint32_t>(1);
        top_.eval();
    }

    template <class Clock>
    void after_edge(Clock& clock) {
        if (one_pass_) {
            top_.commit();
            return;
        }
        clock.template set<uint32_t>(1);
        top_.step();
        clock.template set<uint32_t>(0);
        top_.step();
    }

    template <class Top>
    void memory_edge(Top& top) {
        if constexpr (HasPins<Top>::value) {
            before_edge(top.p_memory__clk, top.prev_p_memory__clk);
            const Pins pins{number(top.p_memory____cke),   number(top.p_memory____ras__n), number(top.p_memory____cas__n),
                            number(top.p_memory____we__n), number(top.p_memory____bank),   number(top.p_memory____address),
                            number(top.p_memory____mask),  number(top.p_memory____data__out),
                            number(top.p_memory____data__drive)};
            uint32_t answer = 0xdead;
            if (!chip_.cycle(out_(pins), &answer)) answer = 0xdead;
            after_edge(top.p_memory__clk);
            top.p_memory____data__in.template set<uint64_t>(samples(back_(answer)));
        }
    }

    // The data pins at the beginning of the cycle, and at each later quarter of it (edgedec.sim.sdram.model).
    uint64_t samples(uint32_t word) {
        words_.push_front(word);
        words_.pop_back();
        uint64_t found = 0;
        for (int64_t quarter = 0; quarter < kQuarters; ++quarter) {
            const int64_t at = kQuarters * kCycles + quarter - late_;
            const uint64_t spoilt = at % kQuarters < count_ ? 0 : 0x5aa5;
            found |= (words_[static_cast<size_t>(kCycles - at / kQuarters)] ^ spoilt) << (16 * quarter);
        }
        return found;
    }

    // The line to the board: idle high, start low, eight bits, stop high.
    uint32_t line() {
        if (to_send_.empty()) return 1;
        const int at = static_cast<int>(static_cast<double>(sent_++) / bit_);
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
        if (static_cast<double>(hearing_) < (taken_ + 0.5) * bit_) return -1;
        if (taken_ > 0 && taken_ < 9) bits_ |= level << (taken_ - 1);
        if (taken_++ < 9) return -1;
        hearing_ = -1;
        return level ? static_cast<int>(bits_) : -1;
    }

    edgedec_design::p_top top_;
    edgedec::sim::Contracts contracts_ = contracts_of(top_);
    std::string violation_;
    bool one_pass_ = false;
    Model chip_;
    double ratio_, ahead_ = 0, bit_;
    Delay<Pins> out_;
    Delay<uint32_t> back_;
    static constexpr int64_t kQuarters = 4, kCycles = 4;
    int64_t late_, count_;
    std::deque<uint32_t> words_ = std::deque<uint32_t>(kCycles, 0xdead);
    std::deque<uint8_t> to_send_;
    int64_t sent_ = 0, hearing_ = -1, now_ = 0;
    uint32_t bits_ = 0;
    int taken_ = 0;
};

Board& of(void* handle) { return *static_cast<Board*>(handle); }

}  // namespace

// ``parameters``: of the memory chip; null, and memory_hz 0, without one.
EXPORT void* edgedec_board_open(const int64_t* parameters, double clock_hz, double memory_hz, double baud, int64_t registers,
                                 int64_t late, int64_t count) {
    Parameters p{};
    if (parameters) std::memcpy(&p, parameters, sizeof p);
    return new Board(p, clock_hz, memory_hz, baud, registers, late, count);
}
EXPORT void edgedec_board_close(void* handle) { delete &of(handle); }
// So many cycles, with bytes to send; how many bytes came meanwhile.
EXPORT int64_t edgedec_board_run(void* handle, int64_t cycles, const uint8_t* in, int64_t count, uint8_t* out, int64_t room) {
    return of(handle).run(cycles, in, count, out, room);
}
// Returns 1 if a part of what was given is still to be sent.
EXPORT int edgedec_board_sending(void* handle) { return of(handle).sending(); }
EXPORT const char* edgedec_board_violation(void* handle) { return of(handle).violation().c_str(); }
EXPORT int64_t edgedec_board_cycles(void* handle) { return of(handle).now(); }
EXPORT uint16_t* edgedec_board_words(void* handle) { return of(handle).chip().words(); }
EXPORT void edgedec_board_counts(void* handle, int64_t* out) {
    const Model& m = of(handle).chip();
    const int64_t counts[] = {m.now(), m.reads(), m.writes(), m.refreshes(), m.activates(), m.busy(), m.ready()};
    std::memcpy(out, counts, sizeof counts);
}
