#include "reader.hpp"

#include <algorithm>

namespace edgedec::ddr {
namespace {

constexpr int64_t kGranule = 4096;  // bytes that a port has on end, see edgedec.hw.isa.striping
constexpr int64_t kQueued = 4;      // ranges that a port may be behind the fastest one
constexpr int64_t kLatency = 3;     // cycles of a queue of slices
constexpr int64_t kWritesWaiting = 256;
constexpr int kUnanswered = 32;

// One port: its ranges cut into bursts, its queue of slices.
struct Port {
    int64_t next_range = 0, at = 0, left = 0;
    PortIn burst{};  // offered, if ar_valid
    std::deque<uint32_t> waiting;  // slices to come of each burst under way
    std::deque<int64_t> queue;     // the cycle from which each slice can be taken
    int64_t got = 0;
};

// Random accesses of another master, one after the other at its rate as far as the memory takes them.
class Accesses {
public:
    Accesses(Memory& memory, Other& other, int64_t port_bytes, int64_t port_hz)
        : memory_(memory), o_(other), port_bytes_(port_bytes), port_hz_(port_hz), state_(static_cast<uint64_t>(other.seed)) {
        next();
    }

    void drive(PortIn& in) {
        const PortOut& out = memory_.out(static_cast<int>(o_.port));
        const auto beats = static_cast<uint32_t>(kLineBytes / port_bytes_);
        credit_ += o_.bytes_per_s;  // in bytes times port_hz, so that nothing is rounded
        const bool due = credit_ >= kLineBytes * port_hz_;
        in.r_ready = in.b_ready = 1;
        if (out.r_valid && out.r_last) end(reads_);
        if (out.b_valid) end(writes_);
        in.w_strobe = ~uint64_t{0};
        in.w_valid = !sending_.empty();
        in.w_last = in.w_valid && sending_.front() == 1;
        if (in.w_valid && out.w_ready && !--sending_.front()) sending_.pop_front();
        in.ar_valid = due && !write_ && reads_ < o_.outstanding;
        in.aw_valid = due && write_ && writes_ < o_.outstanding;
        in.ar_address = in.aw_address = address_;
        in.ar_beats = in.aw_beats = beats;
        if (in.ar_valid && out.ar_ready) {
            ++reads_;
            begun();
        } else if (in.aw_valid && out.aw_ready) {
            sending_.push_back(beats);
            ++writes_;
            begun();
        }
    }

private:
    void end(int64_t& under_way) {
        --under_way;
        ++o_.done;
    }
    void begun() {
        credit_ -= kLineBytes * port_hz_;
        next();
    }
    void next() {
        write_ = o_.write_one_in && ++count_ % o_.write_one_in == 0;
        address_ = static_cast<uint64_t>(o_.address) + random() % static_cast<uint64_t>(o_.lines) * kLineBytes;
    }
    uint64_t random() {  // splitmix64
        uint64_t z = state_ += 0x9e3779b97f4a7c15;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
        z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
        return z ^ (z >> 31);
    }

    Memory& memory_;
    Other& o_;
    const int64_t port_bytes_, port_hz_;
    uint64_t state_, address_ = 0;
    int64_t credit_ = 0, count_ = 0, reads_ = 0, writes_ = 0;
    bool write_ = false;
    std::deque<uint32_t> sending_;  // beats to come of each write whose address is out
};

class Run {
public:
    Run(Memory& memory, Reader& reader, Range* ranges, int64_t count, const Write* writes, int64_t write_count,
        Accesses* other, int64_t other_port)
        : memory_(memory), r_(reader), ranges_(ranges), count_(count), writes_(writes), write_count_(write_count),
          other_(other), other_port_(static_cast<size_t>(other_port)), ports_(static_cast<size_t>(reader.ports)),
          in_(ports_.size() + (other ? 1 : 0)) {}

    int64_t run(int64_t limit) {
        begin_range(0);
        for (now_ = 0; range_ < count_; ++now_) {
            if (now_ >= limit) return -1;
            const auto next = [](const Port& a, const Port& b) { return a.next_range < b.next_range; };
            const int64_t slowest = std::min_element(ports_.begin(), ports_.end(), next)->next_range;
            if (released_ < count_ && released_ < slowest + kQueued) ++released_;
            const auto fewer = [](const Port& a, const Port& b) { return a.got < b.got; };
            least_ = std::min_element(ports_.begin(), ports_.end(), fewer)->got;
            for (size_t i = 0; i < ports_.size(); ++i) serve(static_cast<int>(i));
            write();
            if (other_) other_->drive(in_[other_port_]);
            take();
            memory_.cycle(in_.data());
        }
        return now_;
    }

private:
    void begin_range(int64_t number) {
        range_ = number;
        while (range_ < count_ && !ranges_[range_].beats) ranges_[range_++].finished = now_;
        if (range_ == count_) return;
        beats_left_ = ranges_[range_].beats;
        wait_ = ranges_[range_].wait;
    }

    void serve(int number) {
        Port& port = ports_[static_cast<size_t>(number)];
        PortIn& in = in_[static_cast<size_t>(number)];
        const PortOut& out = memory_.out(number);
        in = port.burst;
        in.ar_valid = in.ar_valid && static_cast<int64_t>(port.waiting.size()) < r_.outstanding;
        const int64_t lead = port.got - least_;
        r_.most_lead = std::max(r_.most_lead, lead);
        in.r_ready = static_cast<int64_t>(port.queue.size()) < r_.depth && (!r_.lead || lead < r_.lead);
        if (in.r_ready && out.r_valid) {
            port.queue.push_back(now_ + kLatency);
            ++port.got;
            if (!--port.waiting.front()) port.waiting.pop_front();
        }
        if (in.ar_valid && out.ar_ready) {
            port.waiting.push_back(in.ar_beats);
            port.burst.ar_valid = 0;
        }
        if (port.left && !port.burst.ar_valid) {
            cut(number, port);
        } else if (!port.left && port.next_range < released_) {
            const Range& range = ranges_[port.next_range++];
            port.at = range.start;
            port.left = range.beats;
        }
    }

    void cut(int number, Port& port) {
        const int64_t chunk = kGranule / r_.port_bytes;
        const int64_t block = port.at / chunk, offset = port.at % chunk, longest = std::min(chunk, r_.burst);
        const int64_t beats = std::min(longest - offset % longest, port.left);
        port.burst.ar_valid = 1;
        port.burst.ar_address = static_cast<uint64_t>((block * r_.ports + number) * kGranule + offset * r_.port_bytes);
        port.burst.ar_beats = static_cast<uint32_t>(beats);
        port.at += beats;
        port.left -= beats;
    }

    // Writes wait until a batch is there; then they go until none waits. A burst takes a cycle more than its beats.
    void write() {
        PortIn& in = in_[0];
        const PortOut& out = memory_.out(0);
        if (due_ < write_count_ && now_ >= next_due_ && writes_[due_].due <= taken_ && due_ - sent_ < kWritesWaiting) {
            ++due_;
            next_due_ = now_ + r_.write_cycles;
        }
        if (due_ - sent_ >= r_.batch || due_ == write_count_) writing_ = true;
        if (due_ == sent_) writing_ = false;
        if (out.b_valid) --unanswered_;
        in.b_ready = 1;
        in.w_valid = !sending_.empty();
        in.w_last = in.w_valid && sending_.front() == 1;
        in.w_strobe = ~uint64_t{0};
        if (in.w_valid && out.w_ready && !--sending_.front()) sending_.pop_front();
        in.aw_valid = writing_ && now_ >= next_write_ && unanswered_ < kUnanswered;
        if (!in.aw_valid) return;
        in.aw_address = static_cast<uint64_t>(writes_[sent_].address);
        in.aw_beats = static_cast<uint32_t>(writes_[sent_].beats);
        if (!out.aw_ready) return;
        sending_.push_back(in.aw_beats);
        next_write_ = now_ + writes_[sent_++].beats + 1;
        ++unanswered_;
    }

    // The reader: a beat in every cycle, where it does not wait.
    void take() {
        if (wait_ > 0) {
            --wait_;
            return;
        }
        for (const Port& port : ports_) {
            if (!port.queue.empty() && port.queue.front() <= now_) continue;
            ++r_.starved;
            return;
        }
        for (Port& port : ports_) port.queue.pop_front();
        ++taken_;
        if (--beats_left_) return;
        ranges_[range_].finished = now_ + 1;
        begin_range(range_ + 1);
    }

    Memory& memory_;
    Reader& r_;
    Range* const ranges_;
    const int64_t count_;
    const Write* const writes_;
    const int64_t write_count_;
    Accesses* const other_;
    const size_t other_port_;
    std::vector<Port> ports_;
    std::vector<PortIn> in_;
    int64_t now_ = 0, released_ = 0, least_ = 0;
    int64_t range_ = 0, beats_left_ = 0, wait_ = 0, taken_ = 0;  // the reader's
    std::deque<uint32_t> sending_;                               // beats to come of each burst whose address is out
    int64_t due_ = 0, sent_ = 0, next_due_ = 0, next_write_ = 0;
    int unanswered_ = 0;
    bool writing_ = false;
};

}  // namespace

int64_t read(Memory& memory, Reader& reader, Range* ranges, int64_t count, const Write* writes, int64_t write_count,
             Other* other, int64_t port_hz, int64_t limit) {
    if (!other) return Run(memory, reader, ranges, count, writes, write_count, nullptr, 0).run(limit);
    Accesses accesses(memory, *other, reader.port_bytes, port_hz);
    return Run(memory, reader, ranges, count, writes, write_count, &accesses, other->port).run(limit);
}

}  // namespace edgedec::ddr
