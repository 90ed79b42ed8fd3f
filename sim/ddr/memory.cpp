#include "memory.hpp"

#include <algorithm>
#include <limits>

namespace edgedec::ddr {
namespace {

constexpr int64_t kNotYet = std::numeric_limits<int64_t>::max();

}  // namespace

Memory::Memory(const Parameters& parameters)
    : Ports(parameters.ports, parameters.port_bytes), p_(parameters), ports_(static_cast<size_t>(p_.ports)) {
    int64_t controller_ports = 0;
    for (int64_t i = 0; i < p_.ports; ++i) controller_ports = std::max(controller_ports, p_.controller_port[i] + 1);
    members_.resize(static_cast<size_t>(controller_ports));
    for (int i = 0; i < p_.ports; ++i) members_[static_cast<size_t>(p_.controller_port[i])].push_back(i);
    turn_.resize(members_.size());
    return_free_.resize(members_.size());
    controller_ = Controller::make(p_, [this](const Access& access, int64_t clock) {
        Port& port = ports_[static_cast<size_t>(access.port)];
        // A line's beats leave the controller's port one after another.
        int64_t& free = return_free_[static_cast<size_t>(p_.controller_port[access.port])];
        free = std::max(clock, free + kLineBytes / p_.port_bytes * p_.return_beat_clocks);
        --port.entries;
        port.lines[access.slot - port.first_slot].ready = free + p_.return_clocks;
    });
    for (int i = 0; i < p_.ports; ++i) drive(i);
}

bool Memory::idle() const {
    for (int i = 0; i < p_.ports; ++i) {
        const Port& port = ports_[static_cast<size_t>(i)];
        if (!port.reads.empty() || !port.writes.empty() || !port.lines.empty() || !port.write_lines.empty() ||
            !port.responses.empty() || out(i).r_valid || out(i).b_valid)
            return false;
    }
    return true;
}

void Memory::archive(Archive& a) {
    Ports::archive(a);
    for (Port& port : ports_)
        a(port.reads, port.writes, port.lines, port.first_slot, port.entries, port.write_lines, port.responses, port.write_beat,
          port.write_response);
    controller_->archive(a);
    a(return_free_, turn_, controller_turn_, granted_, phase_);
}

void Memory::cycle(const PortIn* in) {
    for (int i = 0; i < p_.ports; ++i) transfer(i, in[i]);
    ++cycle_;
    for (phase_ += p_.clock_hz; phase_ >= p_.port_hz; phase_ -= p_.port_hz) {
        arbitrate();
        controller_->tick();
    }
    for (int i = 0; i < p_.ports; ++i) drive(i);
}

void Memory::transfer(int number, const PortIn& in) {
    Port& port = ports_[static_cast<size_t>(number)];
    PortOut& out = output(number);
    const int64_t from = controller_->now() + p_.request_clocks;
    if (in.ar_valid && out.ar_ready) {
        if (check_burst(number, "AR", in.ar_address, in.ar_beats))
            port.reads.push_back({in.ar_address, in.ar_beats, from});
    }
    if (in.aw_valid && out.aw_ready) {
        if (check_burst(number, "AW", in.aw_address, in.aw_beats))
            port.writes.push_back({in.aw_address, in.aw_beats, from});
    }
    if (in.w_valid && out.w_ready) take_write_beat(number, port, in);
    if (in.r_ready && out.r_valid) out.r_valid = 0;
    if (in.b_ready && out.b_valid) out.b_valid = 0;
}

void Memory::take_write_beat(int number, Port& port, const PortIn& in) {
    Command& burst = port.writes.front();
    const uint64_t width = static_cast<uint64_t>(p_.port_bytes);
    const uint64_t address = burst.address + port.write_beat * width;
    const bool last = ++port.write_beat >= burst.beats;
    if (last != static_cast<bool>(in.w_last)) complain(number, last ? "W without last" : "W last too early");
    port.write_response = std::max(port.write_response, write_beat(in, address));
    if (!last && (address + width) % kLineBytes) return;
    port.write_lines.push_back({address / kLineBytes * kLineBytes, last, port.write_response,
                                std::max(burst.from, controller_->now() + p_.request_clocks)});
    if (!last) return;
    port.writes.pop_front();
    port.write_beat = 0;
    port.write_response = kOkay;
}

// The controller takes one line a clock: its ports in turn, and the ports that share one of them in turn.
void Memory::arbitrate() {
    for (size_t i = 0; i < members_.size(); ++i) {
        const size_t group = (controller_turn_ + i) % members_.size();
        const auto& members = members_[group];
        for (size_t j = 0; j < members.size(); ++j) {
            const size_t member = (turn_[group] + j) % members.size();
            if (!send_read(members[member]) && !send_write(members[member])) continue;
            if (++granted_ >= p_.grant_lines || group != controller_turn_ % members_.size() || j) {
                granted_ = 0;
            }
            turn_[group] = granted_ ? member : member + 1;
            controller_turn_ = granted_ ? group : group + 1;
            return;
        }
    }
}

bool Memory::send_read(int number) {
    Port& port = ports_[static_cast<size_t>(number)];
    // A line takes room in the port's queue once the controller has answered it; before that, it is one of its entries.
    const int64_t answered = static_cast<int64_t>(port.lines.size()) - port.entries;
    if (port.reads.empty() || answered >= p_.port_lines || port.entries >= p_.port_entries || !controller_->room(false))
        return false;
    Command& burst = port.reads.front();
    if (controller_->now() < burst.from) return false;
    const uint64_t width = static_cast<uint64_t>(p_.port_bytes);
    const uint32_t here = static_cast<uint32_t>((kLineBytes - burst.address % kLineBytes) / width);
    const uint32_t beats = std::min(burst.beats, here);
    const uint32_t slot = port.first_slot + static_cast<uint32_t>(port.lines.size());
    port.lines.push_back({burst.address, beats, beats == burst.beats, kNotYet});
    ++port.entries;
    controller_->push(burst.address, false, number, slot);
    burst.address += beats * width;
    burst.beats -= beats;
    if (!burst.beats) port.reads.pop_front();
    return true;
}

bool Memory::send_write(int number) {
    Port& port = ports_[static_cast<size_t>(number)];
    if (port.write_lines.empty() || !controller_->room(true)) return false;
    const WriteLine line = port.write_lines.front();
    if (controller_->now() < line.from) return false;
    controller_->push(line.address, true, number, 0);
    // The controller answers for a burst as soon as it has all of it.
    if (line.last) port.responses.push_back({controller_->now() + p_.response_clocks, line.response});
    port.write_lines.pop_front();
    return true;
}

// The outputs of the next cycle. What is valid and was not taken stays as it is.
void Memory::drive(int number) {
    Port& port = ports_[static_cast<size_t>(number)];
    PortOut& out = output(number);
    const bool held = stalled(number);
    out.ar_ready = !held && static_cast<int64_t>(port.reads.size()) < p_.port_commands;
    out.aw_ready = !held && static_cast<int64_t>(port.writes.size()) < p_.port_commands;
    out.w_ready = !held && !port.writes.empty() && static_cast<int64_t>(port.write_lines.size()) < p_.port_write_lines;
    if (!held && !out.r_valid && !port.lines.empty() && port.lines.front().ready <= controller_->now()) {
        Line& line = port.lines.front();
        read_beat(number, line.address, line.last && line.beats == 1);
        line.address += static_cast<uint64_t>(p_.port_bytes);
        if (!--line.beats) {
            port.lines.pop_front();
            ++port.first_slot;
        }
    }
    if (!held && !out.b_valid && !port.responses.empty() && port.responses.front().first <= controller_->now()) {
        out.b_valid = 1;
        out.b_response = port.responses.front().second;
        port.responses.pop_front();
    }
}

}  // namespace edgedec::ddr
