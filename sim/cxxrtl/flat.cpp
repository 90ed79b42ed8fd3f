#include "flat.hpp"

#include <algorithm>

namespace edgedec::sim {
namespace {

constexpr size_t kBursts = 64;  // waiting in a port, of each direction: never the limit of a master of ours

}  // namespace

FlatMemory::FlatMemory(int64_t ports, int64_t port_bytes, int64_t clock_hz, int64_t bytes_per_s, int64_t latency)
    : Ports(ports, port_bytes),
      port_bytes_(port_bytes),
      beat_cost_(bytes_per_s ? port_bytes * clock_hz : 0),
      rate_(bytes_per_s),
      most_(beat_cost_ + rate_),  // time without work is lost, but for what has not made a whole beat yet
      latency_(latency),
      ports_(static_cast<size_t>(ports)) {
    for (int i = 0; i < ports; ++i) drive(i);
}

bool FlatMemory::idle() const {
    for (size_t i = 0; i < ports_.size(); ++i) {
        const Port& port = ports_[i];
        const ddr::PortOut& o = out(static_cast<int>(i));
        if (!port.reads.empty() || !port.writes.empty() || !port.responses.empty() || o.r_valid || o.b_valid) return false;
    }
    return true;
}

void FlatMemory::archive(ddr::Archive& a) {
    Ports::archive(a);
    for (Port& port : ports_) a(port.reads, port.writes, port.responses, port.paid, port.write_response);
    a(credit_, first_);
}

bool FlatMemory::pay() {
    if (credit_ < beat_cost_) return false;
    credit_ -= beat_cost_;
    return true;
}

void FlatMemory::cycle(const ddr::PortIn* in) {
    for (size_t i = 0; i < ports_.size(); ++i) transfer(static_cast<int>(i), in[i]);
    ++cycle_;
    credit_ = std::min(credit_ + rate_, most_);
    for (size_t i = 0; i < ports_.size(); ++i) drive(static_cast<int>((first_ + i) % ports_.size()));
    first_ = (first_ + 1) % ports_.size();
}

void FlatMemory::transfer(int number, const ddr::PortIn& in) {
    Port& port = ports_[static_cast<size_t>(number)];
    ddr::PortOut& o = output(number);
    if (in.ar_valid && o.ar_ready && check_burst(number, "AR", in.ar_address, in.ar_beats))
        port.reads.push_back({in.ar_address, in.ar_beats, cycle_ + latency_});
    if (in.w_valid && o.w_ready) take_write_beat(number, port, in);
    if (in.aw_valid && o.aw_ready && check_burst(number, "AW", in.aw_address, in.aw_beats))
        port.writes.push_back({in.aw_address, in.aw_beats, cycle_});
    if (in.r_ready && o.r_valid) o.r_valid = 0;
    if (in.b_ready && o.b_valid) o.b_valid = 0;
}

void FlatMemory::take_write_beat(int number, Port& port, const ddr::PortIn& in) {
    Burst& burst = port.writes.front();
    port.paid = false;
    port.write_response = std::max(port.write_response, write_beat(in, burst.address));
    burst.address += static_cast<uint64_t>(port_bytes_);
    const bool last = !--burst.beats;
    if (last != static_cast<bool>(in.w_last)) complain(number, last ? "W without last" : "W last too early");
    if (!last) return;
    port.responses.push_back({cycle_ + latency_, port.write_response});
    port.write_response = ddr::kOkay;
    port.writes.pop_front();
}

// The outputs of the next cycle. What is valid and was not taken stays as it is.
void FlatMemory::drive(int number) {
    Port& port = ports_[static_cast<size_t>(number)];
    ddr::PortOut& o = output(number);
    const bool held = stalled(number);
    o.ar_ready = !held && port.reads.size() < kBursts;
    o.aw_ready = !held && port.writes.size() < kBursts;
    if (!held && !o.r_valid && !port.reads.empty() && port.reads.front().from <= cycle_ && pay()) {
        Burst& burst = port.reads.front();
        read_beat(number, burst.address, burst.beats == 1);
        burst.address += static_cast<uint64_t>(port_bytes_);
        if (!--burst.beats) port.reads.pop_front();
    }
    if (!held && !port.paid && !port.writes.empty()) port.paid = pay();
    o.w_ready = !held && port.paid;
    if (!held && !o.b_valid && !port.responses.empty() && port.responses.front().first <= cycle_) {
        o.b_valid = 1;
        o.b_response = port.responses.front().second;
        port.responses.pop_front();
    }
}

}  // namespace edgedec::sim
