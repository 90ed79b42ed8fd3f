// Weights that are read from files while a pass computes, because memory has no room for all of them (runtime/kernels/
// weight_stream.py, docs/memory.md).
//
// Matrices are divided into *parts* of rows, which passes use in one order, again and again. A part is either pinned, in memory
// from the beginning, or streamed: a thread reads the streamed parts one after the other into a ring of slots, ahead of their
// use and across passes. It reads around the system's page cache (O_DIRECT), whose rule of eviction drops what a cycle needs
// next. Where the file system refuses that, pages are given up after each read.
//
// The session has addresses for the streamed matrices, of memory that holds nothing: they only name the matrices.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace edgedec {

// Rows [first, end) of a matrix, as `StreamPart` of weight_stream.py lays it out. `codes` is the place of a pinned
// part; that of a streamed part is null.
struct StreamPart {
    const void* matrix;  // the session's address of the matrix's codes
    int64_t first, end;
    int64_t file;  // number of its file
    int64_t codes_offset, codes_bytes;
    uint8_t* codes;
};

// The counters, as `StreamCounters` of weight_stream.py lays them out. Bytes and seconds are those of the streamed parts since
// the opening.
struct StreamCounters {
    int64_t read_bytes;      // bytes that were read, with what alignment adds
    int64_t used_bytes;      // bytes of the parts that passes have used
    double read_seconds;     // time of the reading thread in reads
    double waited_seconds;   // time that passes waited for parts
    int64_t restarts;        // times that a pass began with another part than the one that was expected
};

class WeightStream {
  public:
    // `slots` is memory of `slot_count` times `slot_bytes`, aligned to kAlignment.
    WeightStream(std::vector<StreamPart> parts, uint8_t* slots, int64_t slot_bytes, int64_t slot_count);
    ~WeightStream();
    WeightStream(const WeightStream&) = delete;
    WeightStream& operator=(const WeightStream&) = delete;

    static constexpr int64_t kAlignment = 4096;  // unit in bytes of offsets, sizes and addresses of direct reads

    // Opens the files, reads the pinned parts and starts the thread. Returns a message if that fails, or an empty one.
    std::string open(const std::vector<std::string>& files);
    // Ends the thread. Passes that wait for a part get a message.
    void stop();
    // Limits the reads to so many bytes per second, to simulate a slower disk; 0: no limit.
    void throttle(double bytes_per_second);

    const std::vector<StreamPart>& parts() const { return parts_; }
    // Returns whether all files are read around the page cache.
    bool direct() const;
    StreamCounters counters();

    // Waits until a part is in memory and sets `codes` to its place. Returns a message if it cannot be read, or an empty one. `release`
    // must follow when a streamed part has been used. Passes use the parts in their order; a pass that begins anew, after one
    // that failed, starts the reading again.
    std::string acquire(size_t part, const uint8_t*& codes);
    void release(size_t part);

  private:
    struct File {
        std::string path;
        int descriptor = -1;
        bool direct = false;
        int64_t size = 0, modified_ns = 0;  // the file's at the opening
    };
    using Clock = std::chrono::steady_clock;

    std::string open_file(File& file) const;
    // Reads bytes [offset, offset + bytes) of a file to `to` and what alignment adds before and after them. Sets `at` to the
    // place of the first byte.
    std::string read(const File& file, int64_t offset, int64_t bytes, uint8_t* to, const uint8_t** at);
    std::string unchanged(const File& file) const;
    std::string load(const StreamPart& part, uint8_t* slot);
    std::string pin(const StreamPart& part);
    void wait_for_disk(int64_t bytes);
    void read_ahead();
    void start_at(std::unique_lock<std::mutex>& lock, size_t number);
    uint8_t* slot(uint64_t sequence) const { return slots_ + static_cast<int64_t>(sequence % slot_count_) * slot_bytes_; }
    size_t streamed_at(uint64_t sequence) const { return streamed_[static_cast<size_t>(sequence % streamed_.size())]; }

    std::vector<StreamPart> parts_;
    std::vector<size_t> streamed_;         // numbers of the streamed parts
    std::vector<size_t> number_streamed_;  // for each part its number among the streamed ones
    std::vector<File> files_;
    uint8_t* const slots_;
    const int64_t slot_bytes_;
    const uint64_t slot_count_;

    std::mutex mutex_;
    std::condition_variable changed_;
    // Streamed parts have sequence numbers over all passes: part `sequence % streamed_.size()`. Parts below `loaded_` were read,
    // those below `acquired_` were given to a pass, and the slots of those below `released_` are free.
    uint64_t loaded_ = 0, acquired_ = 0, released_ = 0;
    bool reading_ = false, stopped_ = false;
    std::string failure_;      // failure of the part `loaded_`
    bool told_ = false;        // true if a pass has got the failure
    double rate_ = 0;          // bytes per second of a simulated disk
    Clock::time_point free_at_;  // when the simulated disk has finished what was read
    StreamCounters counters_{};
    std::thread thread_;
};

// Returns the stream that has parts of the matrix, or null. Streams are found from `open` to their end.
WeightStream* stream_of(const void* matrix);

}  // namespace edgedec
