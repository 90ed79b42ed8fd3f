#include "ports.hpp"

#include <cstring>
#include <limits>

namespace edgedec::ddr {
namespace {

constexpr int64_t kForEver = std::numeric_limits<int64_t>::max();
constexpr uint64_t kPage = 4096;  // no AXI burst crosses one

}  // namespace

Ports::Ports(int64_t ports, int64_t port_bytes)
    : width_(static_cast<uint64_t>(port_bytes)), out_(static_cast<size_t>(ports)) {}

void Ports::attach(uint8_t* bytes, uint64_t address, uint64_t size) {
    bytes_ = bytes;
    base_ = address;
    size_ = size;
}

void Ports::inject_error(uint64_t begin, uint64_t end, uint8_t response, bool reads, bool writes) {
    errors_.push_back({begin, end, response, reads, writes});
}

void Ports::inject_stall(int port, int64_t first, int64_t cycles) {
    stalls_.push_back({port, first, cycles > kForEver - first ? kForEver : first + cycles});
}

void Ports::complain(int port, const std::string& what) {
    if (violation_.empty())
        violation_ = "port " + std::to_string(port) + ", cycle " + std::to_string(cycle_) + ": " + what;
}

bool Ports::check_burst(int port, const std::string& channel, uint64_t address, uint32_t beats) {
    const uint64_t bytes = beats * width_;
    if (beats < 1 || beats > 256) {
        complain(port, channel + " of " + std::to_string(beats) + " beats");
    } else if (address % width_) {
        complain(port, channel + " at no beat's address");
    } else if (address / kPage != (address + bytes - 1) / kPage) {
        complain(port, channel + " crosses 4 KiB");
    } else {
        return true;
    }
    return false;
}

uint8_t Ports::response(uint64_t address, bool write) const {
    const uint64_t end = address + width_;
    for (const Range& range : errors_)
        if ((write ? range.writes : range.reads) && address < range.end && end > range.begin) return range.response;
    if (bytes_ && (address < base_ || end - base_ > size_)) return kDecodeError;
    return kOkay;
}

bool Ports::stalled(int port) const {
    for (const Stall& stall : stalls_)
        if (stall.port == port && cycle_ >= stall.first && cycle_ < stall.end) return true;
    return false;
}

void Ports::read_beat(int port, uint64_t address, bool last) {
    PortOut& out = output(port);
    out.r_valid = 1;
    out.r_response = response(address, false);
    out.r_last = last;
    if (bytes_ && out.r_response == kOkay)
        std::memcpy(out.r_data, bytes_ + (address - base_), width_);
    else
        std::memset(out.r_data, 0, width_);
}

uint8_t Ports::write_beat(const PortIn& in, uint64_t address) {
    const uint8_t answer = response(address, true);
    if (answer == kOkay && bytes_)
        for (uint64_t i = 0; i < width_; ++i)
            if (in.w_strobe >> i & 1) bytes_[address - base_ + i] = in.w_data[i];
    return answer;
}

}  // namespace edgedec::ddr
