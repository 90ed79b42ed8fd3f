#include "traffic.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace edgedec::ddr {
namespace {

struct Master {
    Stream* stream = nullptr;
    int64_t asked = 0, moved = 0, answered = 0;  // bytes
    int64_t next_beat = 0;
    std::deque<uint32_t> bursts;  // beats not moved yet, of each burst under way
    int64_t unanswered = 0;       // bursts of a write
    bool finished() const { return (stream->write ? answered : moved) >= stream->bytes; }
};

int64_t next_address(const Master& master) {
    const Stream& s = *master.stream;
    return s.address + master.asked / s.chunk_bytes * s.stride_bytes + master.asked % s.chunk_bytes;
}

uint32_t next_burst(const Master& master, int port_bytes) {
    const Stream& s = *master.stream;
    const int64_t page = 4096 - next_address(master) % 4096;
    const int64_t bytes = std::min({s.burst_bytes, s.bytes - master.asked, page, s.chunk_bytes - master.asked % s.chunk_bytes});
    return static_cast<uint32_t>((bytes + port_bytes - 1) / port_bytes);
}

}  // namespace

int64_t run(Memory& memory, int ports, int port_bytes, Stream* streams, int count, int64_t limit) {
    std::vector<Master> masters(static_cast<size_t>(count));
    std::vector<Master*> reader(static_cast<size_t>(ports)), writer(static_cast<size_t>(ports));
    for (int i = 0; i < count; ++i) {
        Master& master = masters[static_cast<size_t>(i)];
        master.stream = &streams[i];
        auto& place = (streams[i].write ? writer : reader)[static_cast<size_t>(streams[i].port)];
        if (place) throw std::invalid_argument("two streams of one direction on one port");
        place = &master;
    }
    std::vector<PortIn> in(static_cast<size_t>(ports));
    const int64_t first = memory.cycles();
    int left = count;
    while (left > 0) {
        const int64_t cycle = memory.cycles() - first;
        if (cycle >= limit) return -1;
        for (int port = 0; port < ports; ++port) {
            PortIn& i = in[static_cast<size_t>(port)];
            const PortOut& out = memory.out(port);
            if (Master* master = reader[static_cast<size_t>(port)]) {
                const Stream& s = *master->stream;
                i.ar_valid = cycle >= s.start_cycle && master->asked < s.bytes &&
                             static_cast<int64_t>(master->bursts.size()) < s.outstanding;
                if (i.ar_valid) {
                    i.ar_address = static_cast<uint64_t>(next_address(*master));
                    i.ar_beats = next_burst(*master, port_bytes);
                    if (out.ar_ready) {
                        master->bursts.push_back(i.ar_beats);
                        master->asked += int64_t{i.ar_beats} * port_bytes;
                    }
                }
                i.r_ready = cycle >= master->next_beat;
                if (i.r_ready && out.r_valid) {
                    master->next_beat = cycle + s.beat_cycles;
                    master->moved += port_bytes;
                    if (!--master->bursts.front()) master->bursts.pop_front();
                    if (master->finished()) {
                        master->stream->finished = cycle + 1;
                        --left;
                    }
                }
            }
            if (Master* master = writer[static_cast<size_t>(port)]) {
                const Stream& s = *master->stream;
                const bool begun = cycle >= s.start_cycle && master->asked < s.bytes;
                i.aw_valid = begun && master->unanswered < s.outstanding;
                if (i.aw_valid && s.after >= 0) {
                    // A burst leaves when the results that fill it are there.
                    const Master& source = masters[static_cast<size_t>(s.after)];
                    const int64_t there = source.finished() ? s.bytes : source.moved / s.ratio;
                    i.aw_valid = there >= std::min(s.bytes, master->asked + next_burst(*master, port_bytes) * port_bytes);
                }
                if (i.aw_valid) {
                    i.aw_address = static_cast<uint64_t>(next_address(*master));
                    i.aw_beats = next_burst(*master, port_bytes);
                }
                i.w_valid = !master->bursts.empty() && cycle >= master->next_beat;
                i.w_last = i.w_valid && master->bursts.front() == 1;
                if (i.w_valid && out.w_ready) {
                    master->next_beat = cycle + s.beat_cycles;
                    master->moved += port_bytes;
                    if (!--master->bursts.front()) master->bursts.pop_front();
                }
                if (i.aw_valid && out.aw_ready) {
                    master->bursts.push_back(i.aw_beats);
                    master->asked += int64_t{i.aw_beats} * port_bytes;
                    ++master->unanswered;
                }
                i.b_ready = 1;
                if (out.b_valid && !--master->unanswered && master->asked >= s.bytes) {
                    master->answered = s.bytes;
                    master->stream->finished = cycle + 1;
                    --left;
                }
            }
        }
        memory.cycle(in.data());
    }
    return memory.cycles() - first;
}

}  // namespace edgedec::ddr
