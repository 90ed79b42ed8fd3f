// The threads of sessions that run without ONNX Runtime. There is one pool for the whole process: the passes of a model and of its
// draft model alternate, and threads of two pools, each waiting for its next pass, would take the cores from each other.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>

#include "operators/team.hpp"

namespace edgedec {

class ThreadPool {
  public:
    using Work = void (*)(void* user, size_t index);

    // It is never destroyed, because its threads end with the process.
    static ThreadPool& shared() {
        static ThreadPool& pool = *new ThreadPool;
        return pool;
    }

    // Calls work(user, 0) on this thread, and work(user, index) with 1 <= index < count on those threads of the pool that arrive
    // before it ends. So no call may need another one; which of them leads the work is up to them. It returns when all calls have
    // ended.
    void run(Work work, size_t count, void* user) {
        const std::unique_lock<std::mutex> turn(turn_, std::try_to_lock);
        if (!turn || count < 2) return work(user, 0);  // another thread has the pool
        grow(count - 1);
        work_ = work, user_ = user, count_ = count;
        next_.store(1, std::memory_order_relaxed);
        job_.fetch_add(1);  // it becomes odd: threads may join
        if (sleepers_.load()) {
            const std::lock_guard<std::mutex> lock(sleep_);
            wake_.notify_all();
        }
        const Closing closing(*this);  // also if the work ends with an exception
        work(user, 0);
    }

  private:
    // Ends the job, and waits until no thread is inside.
    class Closing {
      public:
        explicit Closing(ThreadPool& pool) : pool_(pool) {}
        ~Closing() {
            pool_.job_.fetch_add(1);
            for (int waits = 0; pool_.inside_.load(); ++waits) Team::wait(waits);
        }
        Closing(const Closing&) = delete;
        Closing& operator=(const Closing&) = delete;

      private:
        ThreadPool& pool_;
    };

    // Time that a thread looks for the next job before it sleeps. It is longer than a host takes between two passes.
    static constexpr std::chrono::microseconds kPatience{1000};
    static constexpr int kLooks = 64;  // looks for a job between two looks at the clock

    void grow(size_t threads) {
        for (; threads_ < threads && threads_ + 1 < Team::kMost; ++threads_) {
            try {
                std::thread([this] { serve(); }).detach();
            } catch (const std::system_error&) {
                return;  // fewer threads do all of the work
            }
        }
    }

    [[noreturn]] void serve() {
        for (uint64_t last = 0;;) {
            const uint64_t job = expect(last);
            inside_.fetch_add(1);
            if (job_.load() == job) {  // otherwise it has ended, and its caller may not have seen this thread
                const size_t index = next_.fetch_add(1, std::memory_order_relaxed);
                if (index < count_) work_(user_, index);
            }
            inside_.fetch_sub(1);
            last = job;
        }
    }

    // Waits for a job other than `last`.
    uint64_t expect(uint64_t last) {
        const auto open = [&](uint64_t job) { return (job & 1) && job != last; };
        const auto began = std::chrono::steady_clock::now();
        for (int waits = 0;; ++waits) {
            const uint64_t job = job_.load();
            if (open(job)) return job;
            if (waits % kLooks == kLooks - 1 && std::chrono::steady_clock::now() - began > kPatience) break;
            Team::wait(waits);
        }
        std::unique_lock<std::mutex> lock(sleep_);
        sleepers_.fetch_add(1);
        uint64_t job = 0;
        wake_.wait(lock, [&] { return open(job = job_.load()); });
        sleepers_.fetch_sub(1);
        return job;
    }

    std::mutex turn_, sleep_;
    std::condition_variable wake_;
    size_t threads_ = 0;  // behind `turn_`
    // The job, which changes only while `job_` is even and no thread is inside.
    Work work_ = nullptr;
    void* user_ = nullptr;
    size_t count_ = 0;
    std::atomic<size_t> next_{0};
    alignas(64) std::atomic<uint64_t> job_{0};
    alignas(64) std::atomic<size_t> inside_{0};
    std::atomic<size_t> sleepers_{0};
};

}  // namespace edgedec
