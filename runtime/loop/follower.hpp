// Rounds that run in one thread while another one reads their results.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace edgedec {

class Follower {
  public:
    // Prepares for a call. No other one may be running.
    void begin() {
        const std::lock_guard<std::mutex> lock(mutex_);
        finished_ = taken_ = 0;
        ended_ = halted_ = false;
    }

    // Announces a finished round. Returns whether a further one may begin: the reader is at most one round behind.
    bool finish() {
        const std::lock_guard<std::mutex> lock(mutex_);
        ++finished_;
        changed_.notify_all();
        return !halted_ && finished_ - taken_ <= kAhead;
    }

    // Announces the end of the call.
    void end() {
        const std::lock_guard<std::mutex> lock(mutex_);
        ended_ = true;
        changed_.notify_all();
    }

    // Waits until more rounds than `taken`, whose results were read, have finished, or the call has ended. Returns their number.
    int64_t follow(int64_t taken) {
        std::unique_lock<std::mutex> lock(mutex_);
        taken_ = taken;
        changed_.wait(lock, [&] { return finished_ > taken || ended_; });
        return finished_;
    }

    // Lets no further round begin.
    void stop() {
        const std::lock_guard<std::mutex> lock(mutex_);
        halted_ = true;
    }

    // Lets no further round begin, and waits for the end of the call.
    void halt() {
        std::unique_lock<std::mutex> lock(mutex_);
        halted_ = true;
        changed_.wait(lock, [&] { return ended_; });
    }

  private:
    static constexpr int64_t kAhead = 1;

    std::mutex mutex_;
    std::condition_variable changed_;
    int64_t finished_ = 0, taken_ = 0;
    bool ended_ = true, halted_ = false;
};

}  // namespace edgedec
