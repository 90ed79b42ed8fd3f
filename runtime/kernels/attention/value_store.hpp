// The values of keys that queries choose, in a file, with a fixed number of rows of each key/value head in memory (runtime/
// kernels/value_file.py, docs/kv-policies.md).
//
// A row has the place of its key: slot s of head h of a state. Each pass writes its new rows to the file and to memory, where they
// replace those that were not used for the longest time (the second-chance rule), and reads the rows that queries have chosen,
// from memory if they are there. So every row is in the file, and the number of rows in memory changes no result.
//
// The file is read and written through the system's page cache: rows that are chosen come again, so that what memory is free is
// well used by it, and a pass does not wait for the disk when it writes. A checksum of each row stays in memory, because a failed
// write that the system reports late, or not at all, would otherwise change a text.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace edgedec {

// The rows of a state, as `ValuePart` of value_file.py lays it out.
struct ValuePart {
    int64_t heads, slots;  // key/value heads, and rows of each
    int64_t row_bytes;     // bytes of a row with its scale
    int64_t frames;        // rows of each head that are in memory, 0 to `slots`
};

// The cost of a reading: rows that were in memory, those that were fetched, and the bytes that were read for them.
struct FetchCounts {
    int64_t kept = 0, fetched = 0, bytes = 0;
};

class ValueStore {
  public:
    // `descriptor` is an open file, which must stay open as long as the store; `name` is what messages call it.
    ValueStore(int descriptor, std::string name, const std::vector<ValuePart>& parts);
    ValueStore(const ValueStore&) = delete;
    ValueStore& operator=(const ValueStore&) = delete;

    static constexpr int64_t kMostRow = 4096;  // bytes of a row

    size_t parts() const { return parts_.size(); }
    const ValuePart& part(size_t number) const { return parts_[number].sizes; }
    int64_t file_bytes() const { return file_bytes_; }

    // Writes `count` rows of a head, whose slots follow one another. Any thread may call this and `read`.
    void write(size_t part, int64_t head, int64_t slot, int64_t count, const uint8_t* rows);
    // Copies the rows of `slots` to `out`, one after another.
    FetchCounts read(size_t part, int64_t head, const int64_t* slots, int64_t count, uint8_t* out);
    // Copies the rows of blocks of `rows` slots, of which those that were never written become 0. Memory stays as it is.
    void read_blocks(size_t part, int64_t head, const int32_t* blocks, int64_t count, int64_t rows, uint8_t* out);
    // Copies the row of a slot to another slot, unless it was never written.
    void copy(size_t part, int64_t head, int64_t from, int64_t to);

    // Returns the first failure since the last call, as a message, or an empty one. What was read since may be wrong.
    std::string take_failure();

  private:
    struct Head {
        std::mutex mutex;
        std::vector<int32_t> frame_of;  // [slots] -1: the row is not in memory
        std::vector<uint32_t> sums;     // [slots] 0: the row was never written
        std::vector<int32_t> slot_of;   // [frames] -1: the frame is free
        std::vector<uint8_t> used;      // [frames] whether the row was used since the hand has passed
        std::unique_ptr<uint8_t[]> rows;  // [frames][row_bytes]
        int64_t offset = 0;             // place of its rows in the file
        int64_t hand = 0;
    };
    struct Part {
        ValuePart sizes;
        std::vector<Head> heads;
    };

    uint8_t* place(const ValuePart& sizes, Head& head, int64_t slot);
    bool fetch(const ValuePart& sizes, const Head& head, int64_t slot, int64_t count, uint8_t* out);
    bool load(const ValuePart& sizes, Head& head, int64_t slot, uint8_t* out);
    bool save(const ValuePart& sizes, Head& head, int64_t slot, int64_t count, const uint8_t* rows);
    void fail(const std::string& message);

    const int descriptor_;
    const std::string name_;
    std::vector<Part> parts_;
    int64_t file_bytes_ = 0;
    std::mutex mutex_;
    std::string failure_;
};

// Returns the open store of a number, or null.
std::shared_ptr<ValueStore> value_store(int64_t number);

}  // namespace edgedec
