// The file of values, and its C functions for Python (runtime/kernels/attention/value_file.py).
#include "attention/value_store.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <map>
#include <utility>

#define EDGEDEC_API extern "C" __attribute__((visibility("default")))

namespace edgedec {
namespace {

constexpr int64_t kWindow = 4096;  // bytes within which rows are fetched together

std::mutex stores_mutex;
std::map<int64_t, std::shared_ptr<ValueStore>> stores;  // by number, which sessions and calls name
int64_t last_store = 0;

size_t index(int64_t number) { return static_cast<size_t>(number); }

// Returns a checksum of a row, which is never 0: FNV-1a over words of 8 bytes, whose halves are then folded.
uint32_t sum_of(const uint8_t* row, int64_t bytes) {
    uint64_t sum = 0xCBF29CE484222325u;
    for (int64_t at = 0; at < bytes; at += 8) {
        uint64_t word = 0;
        std::memcpy(&word, row + at, index(std::min<int64_t>(8, bytes - at)));
        sum = (sum ^ word) * 0x100000001B3u;
        sum ^= sum >> 29;
    }
    const auto folded = static_cast<uint32_t>(sum ^ sum >> 32);
    return folded ? folded : 1;
}

}  // namespace

std::shared_ptr<ValueStore> value_store(int64_t number) {
    const std::lock_guard<std::mutex> lock(stores_mutex);
    const auto found = stores.find(number);
    return found == stores.end() ? nullptr : found->second;
}

ValueStore::ValueStore(int descriptor, std::string name, const std::vector<ValuePart>& parts)
    : descriptor_(descriptor), name_(std::move(name)) {
    for (const ValuePart& sizes : parts) {
        parts_.push_back({sizes, std::vector<Head>(index(sizes.heads))});
        for (Head& head : parts_.back().heads) {
            head.frame_of.assign(index(sizes.slots), -1);
            head.sums.assign(index(sizes.slots), 0);
            head.slot_of.assign(index(sizes.frames), -1);
            head.used.assign(index(sizes.frames), 0);
            head.rows.reset(new uint8_t[index(sizes.frames * sizes.row_bytes)]);
            head.offset = file_bytes_;
            file_bytes_ += sizes.slots * sizes.row_bytes;
        }
    }
}

// Returns the place in memory of the row of a slot, which another row may have to leave; null if memory has no rows at all.
uint8_t* ValueStore::place(const ValuePart& sizes, Head& head, int64_t slot) {
    if (!sizes.frames) return nullptr;
    int32_t& frame = head.frame_of[index(slot)];
    if (frame < 0) {
        while (head.used[index(head.hand)]) {  // ends, because it clears what it passes
            head.used[index(head.hand)] = 0;
            head.hand = (head.hand + 1) % sizes.frames;
        }
        int32_t& owner = head.slot_of[index(head.hand)];
        if (owner >= 0) head.frame_of[index(owner)] = -1;
        owner = static_cast<int32_t>(slot), frame = static_cast<int32_t>(head.hand);
        head.hand = (head.hand + 1) % sizes.frames;
    }
    head.used[index(frame)] = 1;
    return head.rows.get() + frame * sizes.row_bytes;
}

void ValueStore::write(size_t part, int64_t head, int64_t slot, int64_t count, const uint8_t* rows) {
    const ValuePart& sizes = parts_[part].sizes;
    Head& state = parts_[part].heads[index(head)];
    const std::lock_guard<std::mutex> lock(state.mutex);
    save(sizes, state, slot, count, rows);
}

bool ValueStore::save(const ValuePart& sizes, Head& head, int64_t slot, int64_t count, const uint8_t* rows) {
    for (int64_t i = 0; i < count; ++i) {
        const uint8_t* row = rows + i * sizes.row_bytes;
        head.sums[index(slot + i)] = sum_of(row, sizes.row_bytes);
        if (uint8_t* to = place(sizes, head, slot + i)) std::memcpy(to, row, index(sizes.row_bytes));
    }
    const int64_t first = head.offset + slot * sizes.row_bytes, bytes = count * sizes.row_bytes;
    for (int64_t done = 0; done < bytes;) {
        const ssize_t wrote = pwrite(descriptor_, rows + done, index(bytes - done), first + done);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote <= 0) {
            const std::string why = wrote ? std::strerror(errno) : "No space left on device";
            fail("cannot be written at byte " + std::to_string(first + done) + " of " + std::to_string(file_bytes_) + ": " + why);
            return false;
        }
        done += wrote;
    }
    return true;
}

// Reads `count` rows from the file, which follow one another.
bool ValueStore::fetch(const ValuePart& sizes, const Head& head, int64_t slot, int64_t count, uint8_t* out) {
    const int64_t first = head.offset + slot * sizes.row_bytes, bytes = count * sizes.row_bytes;
    for (int64_t done = 0; done < bytes;) {
        const ssize_t got = pread(descriptor_, out + done, index(bytes - done), first + done);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            fail("cannot be read at byte " + std::to_string(first + done) + ": " + std::strerror(errno));
            return false;
        }
        if (!got) {
            fail("ends at byte " + std::to_string(first + done) + ", and rows up to byte " + std::to_string(first + bytes) +
                 " were written: it has become shorter");
            return false;
        }
        done += got;
    }
    return true;
}

FetchCounts ValueStore::read(size_t part, int64_t head, const int64_t* slots, int64_t count, uint8_t* out) {
    const ValuePart& sizes = parts_[part].sizes;
    Head& state = parts_[part].heads[index(head)];
    const int64_t bytes = sizes.row_bytes, most = std::max<int64_t>(1, kWindow / bytes);
    uint8_t window[kWindow];
    FetchCounts counts;
    const std::lock_guard<std::mutex> lock(state.mutex);
    const auto missing = [&](int64_t i) { return state.frame_of[index(slots[i])] < 0; };
    for (int64_t i = 0; i < count;) {
        if (!missing(i)) {
            std::memcpy(out + i * bytes, place(sizes, state, slots[i]), index(bytes));
            ++counts.kept, ++i;
            continue;
        }
        // One reading takes all missing rows of a window; what lies between them is read in vain.
        int64_t next = i + 1, last = i;
        for (; next < count && slots[next] > slots[next - 1] && slots[next] - slots[i] < most; ++next)
            if (missing(next)) last = next;
        const int64_t rows = slots[last] - slots[i] + 1;
        if (!fetch(sizes, state, slots[i], rows, window)) return counts;
        counts.bytes += rows * bytes;
        for (int64_t j = i; j <= last; ++j) {
            const uint8_t* row = window + (slots[j] - slots[i]) * bytes;
            const bool fetched = missing(j);
            if (fetched && sum_of(row, bytes) != state.sums[index(slots[j])]) {
                fail("has another row at byte " + std::to_string(state.offset + slots[j] * bytes) +
                     " than the one that was written");
                return counts;
            }
            uint8_t* kept = place(sizes, state, slots[j]);
            if (fetched && kept) std::memcpy(kept, row, index(bytes));
            std::memcpy(out + j * bytes, fetched ? row : kept, index(bytes));
            ++(fetched ? counts.fetched : counts.kept);
        }
        i = last + 1;
    }
    return counts;
}

// Copies a row that was written, from memory or from the file, and leaves memory as it is.
bool ValueStore::load(const ValuePart& sizes, Head& head, int64_t slot, uint8_t* out) {
    const int32_t frame = head.frame_of[index(slot)];
    if (frame >= 0) {
        std::memcpy(out, head.rows.get() + frame * sizes.row_bytes, index(sizes.row_bytes));
        return true;
    }
    if (!fetch(sizes, head, slot, 1, out)) return false;
    if (sum_of(out, sizes.row_bytes) == head.sums[index(slot)]) return true;
    fail("has another row at byte " + std::to_string(head.offset + slot * sizes.row_bytes) + " than the one that was written");
    return false;
}

void ValueStore::read_blocks(size_t part, int64_t head, const int32_t* blocks, int64_t count, int64_t rows, uint8_t* out) {
    const ValuePart& sizes = parts_[part].sizes;
    Head& state = parts_[part].heads[index(head)];
    const std::lock_guard<std::mutex> lock(state.mutex);
    for (int64_t i = 0; i < count * rows; ++i, out += sizes.row_bytes) {
        const int64_t slot = blocks[i / rows] * rows + i % rows;
        if (!state.sums[index(slot)]) std::memset(out, 0, index(sizes.row_bytes));
        else if (!load(sizes, state, slot, out)) return;
    }
}

void ValueStore::copy(size_t part, int64_t head, int64_t from, int64_t to) {
    const ValuePart& sizes = parts_[part].sizes;
    Head& state = parts_[part].heads[index(head)];
    uint8_t row[kMostRow];
    const std::lock_guard<std::mutex> lock(state.mutex);
    if (state.sums[index(from)] && load(sizes, state, from, row)) save(sizes, state, to, 1, row);
}

void ValueStore::fail(const std::string& message) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (failure_.empty())
        failure_ = name_ + " " + message + "; check the disk and ask again, or keep all values in memory with --kv-policy full";
}

std::string ValueStore::take_failure() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(failure_, {});
}

}  // namespace edgedec

namespace {

thread_local std::string last_error;

int32_t fail(const std::string& message) {
    last_error = message;
    return -1;
}

// Returns the store of a number if the part, the head and the blocks are among its own; null, with the error set, if not.
std::shared_ptr<edgedec::ValueStore> checked(int64_t number, int64_t part, int64_t head, const int32_t* blocks, int64_t count,
                                             int64_t rows) {
    auto store = edgedec::value_store(number);
    if (!store || part < 0 || part >= static_cast<int64_t>(store->parts()) || head < 0 ||
        head >= store->part(static_cast<size_t>(part)).heads || rows < 1) {
        fail("there is no such part of the values");
        return nullptr;
    }
    for (int64_t i = 0; i < count; ++i)
        if (blocks[i] < 0 || (blocks[i] + int64_t{1}) * rows > store->part(static_cast<size_t>(part)).slots) {
            fail("a block is outside the values");
            return nullptr;
        }
    return store;
}

}  // namespace

EDGEDEC_API const char* edgedec_values_error() { return last_error.c_str(); }

// Opens a store over an open file, and returns its number; -1 after an error.
EDGEDEC_API int64_t edgedec_values_open(int32_t descriptor, const char* name, const edgedec::ValuePart* parts, int64_t count) {
    try {
        for (int64_t i = 0; i < count; ++i)
            if (parts[i].heads < 1 || parts[i].slots < 1 || parts[i].row_bytes < 1 ||
                parts[i].row_bytes > edgedec::ValueStore::kMostRow || parts[i].frames < 0 || parts[i].frames > parts[i].slots)
                return fail("the sizes of a part of the values are out of range");
        auto store = std::make_shared<edgedec::ValueStore>(descriptor, name, std::vector<edgedec::ValuePart>(parts, parts + count));
        const std::lock_guard<std::mutex> lock(edgedec::stores_mutex);
        edgedec::stores[++edgedec::last_store] = std::move(store);
        return edgedec::last_store;
    } catch (const std::exception& error) {
        return fail(error.what());
    }
}

// Ends a store. Sessions that use it keep its memory, and the file must stay open as long as they run.
EDGEDEC_API void edgedec_values_close(int64_t number) {
    const std::lock_guard<std::mutex> lock(edgedec::stores_mutex);
    edgedec::stores.erase(number);
}

// Copies the rows of blocks of `rows` slots to `out`, or from `data` to them. Returns -1 after an error.
EDGEDEC_API int32_t edgedec_values_read(int64_t number, int64_t part, int64_t head, const int32_t* blocks, int64_t count,
                                        int64_t rows, uint8_t* out) {
    const auto store = checked(number, part, head, blocks, count, rows);
    if (!store) return -1;
    store->read_blocks(static_cast<size_t>(part), head, blocks, count, rows, out);
    const std::string why = store->take_failure();
    return why.empty() ? 0 : fail(why);
}

EDGEDEC_API int32_t edgedec_values_write(int64_t number, int64_t part, int64_t head, const int32_t* blocks, int64_t count,
                                         int64_t rows, const uint8_t* data) {
    const auto store = checked(number, part, head, blocks, count, rows);
    if (!store) return -1;
    const int64_t bytes = rows * store->part(static_cast<size_t>(part)).row_bytes;
    for (int64_t i = 0; i < count; ++i)
        store->write(static_cast<size_t>(part), head, blocks[i] * rows, rows, data + i * bytes);
    const std::string why = store->take_failure();
    return why.empty() ? 0 : fail(why);
}
