// The reading of streamed weights, and its C functions for Python (runtime/kernels/weights/weight_stream.py).
#include "weights/weight_stream.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#define EDGEDEC_API extern "C" __attribute__((visibility("default")))

namespace edgedec {
namespace {

// The streams of this process, in which operators look up their matrices when a session is opened.
std::mutex streams_mutex;
std::vector<WeightStream*> streams;

int64_t down(int64_t offset) { return offset / WeightStream::kAlignment * WeightStream::kAlignment; }
int64_t up(int64_t offset) { return down(offset + WeightStream::kAlignment - 1); }

int64_t nanoseconds(const timespec& time) { return int64_t{time.tv_sec} * 1000000000 + time.tv_nsec; }
#if defined(__APPLE__)
timespec modified(const struct stat& status) { return status.st_mtimespec; }
#else
timespec modified(const struct stat& status) { return status.st_mtim; }
#endif

double seconds_since(std::chrono::steady_clock::time_point began) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

// Opens a file for reads around the page cache. Returns -1 if the file system has none, or the file cannot be opened.
int open_direct(const char* path) {
#if defined(O_DIRECT)
    return ::open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
#elif defined(F_NOCACHE)
    const int descriptor = ::open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor >= 0) fcntl(descriptor, F_NOCACHE, 1);
    return descriptor;
#else
    (void)path;
    return -1;
#endif
}

}  // namespace

WeightStream* stream_of(const void* matrix) {
    const std::lock_guard<std::mutex> lock(streams_mutex);
    for (WeightStream* stream : streams)
        for (const StreamPart& part : stream->parts())
            if (part.matrix == matrix) return stream;
    return nullptr;
}

WeightStream::WeightStream(std::vector<StreamPart> parts, uint8_t* slots, int64_t slot_bytes, int64_t slot_count)
    : parts_(std::move(parts)), number_streamed_(parts_.size()), slots_(slots), slot_bytes_(slot_bytes),
      slot_count_(static_cast<uint64_t>(slot_count)) {
    for (size_t at = 0; at < parts_.size(); ++at) {
        number_streamed_[at] = streamed_.size();
        if (!parts_[at].codes) streamed_.push_back(at);
    }
}

void WeightStream::stop() {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        stopped_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
}

WeightStream::~WeightStream() {
    {
        const std::lock_guard<std::mutex> lock(streams_mutex);
        streams.erase(std::remove(streams.begin(), streams.end(), this), streams.end());
    }
    stop();
    for (const File& file : files_)
        if (file.descriptor >= 0) close(file.descriptor);
}

std::string WeightStream::open(const std::vector<std::string>& files) {
    files_.resize(files.size());
    for (size_t at = 0; at < files.size(); ++at) {
        files_[at].path = files[at];
        if (std::string why = open_file(files_[at]); !why.empty()) return why;
    }
    for (const StreamPart& part : parts_) {
        if (part.file < 0 || static_cast<size_t>(part.file) >= files_.size()) return "a part of the weights names no file";
        const int64_t pages = up(part.codes_offset + part.codes_bytes) - down(part.codes_offset);
        if (pages > slot_bytes_) return "a part of the weights is larger than a slot";
        if (part.codes)
            if (std::string why = pin(part); !why.empty()) return why;
    }
    counters_ = {};
    {
        const std::lock_guard<std::mutex> lock(streams_mutex);
        streams.push_back(this);
    }
    if (!streamed_.empty()) thread_ = std::thread([this] { read_ahead(); });
    return {};
}

std::string WeightStream::open_file(File& file) const {
    file.descriptor = open_direct(file.path.c_str());
    file.direct = file.descriptor >= 0;
    // A file system may take the flag and then refuse the reads, so one is tried.
    if (file.direct && pread(file.descriptor, slots_, kAlignment, 0) < 0 && errno == EINVAL) {
        close(file.descriptor);
        file.direct = false;
    }
    if (!file.direct) file.descriptor = ::open(file.path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat now;
    if (file.descriptor < 0 || fstat(file.descriptor, &now)) return file.path + ": cannot be opened: " + std::strerror(errno);
    file.size = now.st_size;
    file.modified_ns = nanoseconds(modified(now));
    return {};
}

bool WeightStream::direct() const {
    return std::all_of(files_.begin(), files_.end(), [](const File& file) { return file.direct; });
}

// A file that another one took the place of stays as it was for whoever has it open. So only a change of its content counts, and
// not that of its links.
std::string WeightStream::unchanged(const File& file) const {
    struct stat now;
    if (fstat(file.descriptor, &now)) return file.path + ": cannot be read: " + std::strerror(errno);
    if (now.st_size == file.size && nanoseconds(modified(now)) == file.modified_ns) return {};
    return file.path + " was changed while the model ran; open the model again";
}

std::string WeightStream::read(const File& file, int64_t offset, int64_t bytes, uint8_t* to, const uint8_t** at) {
    const int64_t first = down(offset), last = up(offset + bytes), needed = offset + bytes - first;
    *at = to + (offset - first);
    for (int64_t done = 0; done < needed;) {
        // The rest after a short read may not be aligned, so the read begins again at the last multiple.
        const int64_t from = down(done);
        const ssize_t count = pread(file.descriptor, to + from, static_cast<size_t>(last - first - from), first + from);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) return file.path + ": cannot be read at byte " + std::to_string(first + from) + ": " + std::strerror(errno);
        if (from + count <= done)
            return file.path + " ends at byte " + std::to_string(first + from + count) + " and the model has weights up to " +
                   std::to_string(offset + bytes) + "; it was changed while the model ran, so open the model again";
        done = from + count;
    }
#if defined(POSIX_FADV_DONTNEED)
    if (!file.direct) posix_fadvise(file.descriptor, first, last - first, POSIX_FADV_DONTNEED);
#endif
    wait_for_disk(last - first);
    const std::lock_guard<std::mutex> lock(mutex_);
    counters_.read_bytes += last - first;
    return {};
}

std::string WeightStream::load(const StreamPart& part, uint8_t* slot) {
    const File& file = files_[static_cast<size_t>(part.file)];
    const uint8_t* at = nullptr;
    if (std::string why = read(file, part.codes_offset, part.codes_bytes, slot, &at); !why.empty()) return why;
    return unchanged(file);
}

std::string WeightStream::pin(const StreamPart& part) {
    const File& file = files_[static_cast<size_t>(part.file)];
    const uint8_t* at = nullptr;
    if (std::string why = read(file, part.codes_offset, part.codes_bytes, slots_, &at); !why.empty()) return why;
    std::memcpy(part.codes, at, static_cast<size_t>(part.codes_bytes));
    return {};
}

void WeightStream::throttle(double bytes_per_second) {
    const std::lock_guard<std::mutex> lock(mutex_);
    rate_ = bytes_per_second;
    free_at_ = Clock::now();
}

void WeightStream::wait_for_disk(int64_t bytes) {
    Clock::time_point until;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (rate_ <= 0) return;
        const auto took = std::chrono::duration<double>(static_cast<double>(bytes) / rate_);
        // The read itself was a part of this time, so the disk was free when it began, not now.
        free_at_ += std::chrono::duration_cast<Clock::duration>(took);
        until = free_at_;
    }
    std::this_thread::sleep_until(until);
}

void WeightStream::read_ahead() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
        changed_.wait(lock, [this] { return stopped_ || (failure_.empty() && loaded_ - released_ < slot_count_); });
        if (stopped_) return;
        const uint64_t sequence = loaded_;
        reading_ = true;
        const auto began = Clock::now();
        free_at_ = std::max(free_at_, began);  // a simulated disk makes up for no time in which nothing was asked for
        lock.unlock();
        std::string why = load(parts_[streamed_at(sequence)], slot(sequence));
        lock.lock();
        counters_.read_seconds += seconds_since(began);
        reading_ = false;
        if (why.empty()) ++loaded_;
        failure_ = std::move(why);
        changed_.notify_all();
    }
}

// Lets the reading go on with a streamed part, and drops what was read ahead.
void WeightStream::start_at(std::unique_lock<std::mutex>& lock, size_t number) {
    changed_.wait(lock, [this] { return !reading_; });
    const uint64_t count = streamed_.size();
    loaded_ += (number + count - loaded_ % count) % count;
    acquired_ = released_ = loaded_;
    failure_.clear(), told_ = false;
    changed_.notify_all();
}

std::string WeightStream::acquire(size_t part, const uint8_t*& codes) {
    const StreamPart& streamed = parts_[part];
    if (streamed.codes) {
        codes = streamed.codes;
        return {};
    }
    std::unique_lock<std::mutex> lock(mutex_);
    const size_t number = number_streamed_[part];
    if (acquired_ % streamed_.size() != number || told_) {
        ++counters_.restarts;
        start_at(lock, number);
    }
    if (loaded_ == acquired_) {
        const auto began = Clock::now();
        changed_.wait(lock, [this] { return loaded_ > acquired_ || !failure_.empty() || stopped_; });
        counters_.waited_seconds += seconds_since(began);
    }
    if (loaded_ == acquired_) {
        told_ = true;
        return stopped_ ? "the weights are not read any more" : failure_;
    }
    uint8_t* const at = slot(acquired_++);
    counters_.used_bytes += streamed.codes_bytes;
    codes = at + (streamed.codes_offset - down(streamed.codes_offset));
    return {};
}

void WeightStream::release(size_t part) {
    if (parts_[part].codes) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    ++released_;
    changed_.notify_all();
}

StreamCounters WeightStream::counters() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return counters_;
}

}  // namespace edgedec

namespace {
thread_local std::string last_error;
}

// Sizes of the structures, which Python compares with its own: kind 0 of a part, 1 of the counters.
EDGEDEC_API int64_t edgedec_stream_argument_size(int64_t kind) {
    return static_cast<int64_t>(kind == 0 ? sizeof(edgedec::StreamPart) : sizeof(edgedec::StreamCounters));
}

EDGEDEC_API const char* edgedec_stream_error() { return last_error.c_str(); }

// Opens a stream, which sessions that are opened after it use for the matrices of its parts. The slots and the places of pinned
// parts must outlive it. Returns null after an error.
EDGEDEC_API void* edgedec_stream_open(const char* const* files, int64_t file_count, const edgedec::StreamPart* parts,
                                      int64_t part_count, void* slots, int64_t slot_bytes, int64_t slot_count) {
    try {
        auto stream = std::make_unique<edgedec::WeightStream>(std::vector<edgedec::StreamPart>(parts, parts + part_count),
                                                              static_cast<uint8_t*>(slots), slot_bytes, slot_count);
        last_error = stream->open({files, files + file_count});
        return last_error.empty() ? stream.release() : nullptr;
    } catch (const std::exception& error) {
        last_error = error.what();
        return nullptr;
    }
}

// Ends the reading thread; passes that wait for it fail.
EDGEDEC_API void edgedec_stream_stop(void* stream) { static_cast<edgedec::WeightStream*>(stream)->stop(); }

// Frees the stream. No session that uses it may run any more.
EDGEDEC_API void edgedec_stream_close(void* stream) { delete static_cast<edgedec::WeightStream*>(stream); }

EDGEDEC_API void edgedec_stream_throttle(void* stream, double bytes_per_second) {
    static_cast<edgedec::WeightStream*>(stream)->throttle(bytes_per_second);
}

EDGEDEC_API int32_t edgedec_stream_direct(void* stream) { return static_cast<edgedec::WeightStream*>(stream)->direct(); }

EDGEDEC_API void edgedec_stream_counters(void* stream, edgedec::StreamCounters* counters) {
    *counters = static_cast<edgedec::WeightStream*>(stream)->counters();
}
