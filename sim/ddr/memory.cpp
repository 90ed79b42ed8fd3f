#include "memory.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

namespace edgedec::ddr {
namespace {

constexpr int64_t kNotYet = std::numeric_limits<int64_t>::max();
constexpr uint64_t kPage = 4096;  // no AXI burst crosses one

}  // namespace

Memory::Memory(const Parameters& parameters) : p_(parameters), ports_(static_cast<size_t>(p_.ports)) {
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

void Memory::attach(uint8_t* bytes, uint64_t address, uint64_t size) {
    bytes_ = bytes;
    base_ = address;
    size_ = size;
}

void Memory::inject_error(uint64_t begin, uint64_t end, uint8_t response, bool reads, bool writes) {
    errors_.push_back({begin, end, response, reads, writes});
}

void Memory::inject_stall(int port, int64_t first, int64_t cycles) {
    stalls_.push_back({port, first, cycles > kNotYet - first ? kNotYet : first + cycles});
}

void Memory::complain(int port, const std::string& what) {
    if (violation_.empty())
        violation_ = "port " + std::to_string(port) + ", cycle " + std::to_string(cycle_) + ": " + what;
}

bool Memory::check_burst(int port, const std::string& channel, uint64_t address, uint32_t beats) {
    const uint64_t bytes = beats * static_cast<uint64_t>(p_.port_bytes);
    if (beats < 1 || beats > 256) {
        complain(port, channel + " of " + std::to_string(beats) + " beats");
    } else if (address % static_cast<uint64_t>(p_.port_bytes)) {
        complain(port, channel + " at no beat's address");
    } else if (address / kPage != (address + bytes - 1) / kPage) {
        complain(port, channel + " crosses 4 KiB");
    } else {
        return true;
    }
    return false;
}

uint8_t Memory::response(uint64_t address, bool write) const {
    const uint64_t end = address + static_cast<uint64_t>(p_.port_bytes);
    for (const Range& range : errors_)
        if ((write ? range.writes : range.reads) && address < range.end && end > range.begin) return range.response;
    if (bytes_ && (address < base_ || end - base_ > size_)) return kDecodeError;
    return kOkay;
}

bool Memory::stalled(int port) const {
    for (const Stall& stall : stalls_)
        if (stall.port == port && cycle_ >= stall.first && cycle_ < stall.end) return true;
    return false;
}

bool Memory::idle() const {
    for (const Port& port : ports_)
        if (!port.reads.empty() || !port.writes.empty() || !port.lines.empty() || !port.write_lines.empty() ||
            !port.responses.empty() || port.out.r_valid || port.out.b_valid)
            return false;
    return true;
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
    const PortOut& out = port.out;
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
    if (in.r_ready && out.r_valid) port.out.r_valid = 0;
    if (in.b_ready && out.b_valid) port.out.b_valid = 0;
}

void Memory::take_write_beat(int number, Port& port, const PortIn& in) {
    Command& burst = port.writes.front();
    const uint64_t width = static_cast<uint64_t>(p_.port_bytes);
    const uint64_t address = burst.address + port.write_beat * width;
    const bool last = ++port.write_beat >= burst.beats;
    if (last != static_cast<bool>(in.w_last)) complain(number, last ? "W without last" : "W last too early");
    const uint8_t answer = response(address, true);
    if (answer > port.write_response) port.write_response = answer;
    if (answer == kOkay && bytes_)
        for (uint64_t i = 0; i < width; ++i)
            if (in.w_strobe >> i & 1) bytes_[address - base_ + i] = in.w_data[i];
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
    if (port.reads.empty() || static_cast<int64_t>(port.lines.size()) >= p_.port_lines || port.entries >= p_.port_entries ||
        !controller_->room(false))
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
    PortOut& out = port.out;
    const bool held = stalled(number);
    out.ar_ready = !held && static_cast<int64_t>(port.reads.size()) < p_.port_commands;
    out.aw_ready = !held && static_cast<int64_t>(port.writes.size()) < p_.port_commands;
    out.w_ready = !held && !port.writes.empty() && static_cast<int64_t>(port.write_lines.size()) < p_.port_write_lines;
    if (!held && !out.r_valid && !port.lines.empty() && port.lines.front().ready <= controller_->now()) {
        Line& line = port.lines.front();
        const size_t width = static_cast<size_t>(p_.port_bytes);
        out.r_valid = 1;
        out.r_response = response(line.address, false);
        out.r_last = line.last && line.beats == 1;
        if (bytes_ && out.r_response == kOkay)
            std::memcpy(out.r_data, bytes_ + (line.address - base_), width);
        else
            std::memset(out.r_data, 0, width);
        line.address += width;
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
