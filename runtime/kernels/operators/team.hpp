// Threads that compute one job after another without leaving in between, so that handing over a job takes well under a
// microsecond. One of them leads: it gives the jobs. The others help as soon as they arrive, and the jobs do not wait for them,
// so that a team works with any number of helpers, also with none.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace edgedec {

struct Weights {
    const uint8_t* at;
    size_t count;  // bytes
};

// A later job, whose weights helpers prefetch while they wait for it.
class Upcoming {
  public:
    // Returns the weights that a member reads first: those of its own range of the job.
    virtual Weights weights(size_t member, size_t members) const = 0;

  protected:
    ~Upcoming() = default;
};

class Team {
  public:
    using Work = void (*)(void* user, size_t index);
    static constexpr size_t kMost = 64;  // members

    explicit Team(size_t members) : members_(members < 1 ? 1 : members < kMost ? members : kMost) {}
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    size_t members() const { return members_; }

    // Calls work(user, index) for each index below `count` and returns when all calls have ended. Only the leader may call it.
    void run(Work work, size_t count, void* user) {
        if (members_ == 1 || count < 2) {
            for (size_t index = 0; index < count; ++index) work(user, index);
            return;
        }
        const auto total = static_cast<uint32_t>(count);
        work_.store(work, std::memory_order_relaxed);
        user_.store(user, std::memory_order_relaxed);
        done_.store(0, std::memory_order_relaxed);
        const uint64_t job = ++job_;
        for (size_t m = 0; m < members_; ++m) {  // neighbouring indices for each member
            ranges_[m].end.store(job << 32 | total * (m + 1) / members_, std::memory_order_relaxed);
            ranges_[m].next.store(job << 32 | total * m / members_, std::memory_order_release);
        }
        current_.store(static_cast<uint32_t>(job), std::memory_order_release);
        work_on(static_cast<uint32_t>(job), 0);
        for (int waits = 0; done_.load(std::memory_order_acquire) != total; ++waits) wait(waits);
    }

    // Lets helpers prefetch the weights of `job` while they wait. It must live until they have stopped; null means no job.
    void expect(const Upcoming* job) { upcoming_.store(job, std::memory_order_release); }

    // Lets helpers sleep while they wait, because the leader itself waits for something slow, such as the disk.
    void rest(bool resting) { resting_.store(resting, std::memory_order_relaxed); }

    // Helps with jobs until the leader calls end().
    void help() {
        const size_t member = 1 + joined_.fetch_add(1, std::memory_order_relaxed);
        if (member >= members_) return;
        uint32_t last = 0;
        const Upcoming* expected = nullptr;
        Weights ahead{nullptr, 0};
        for (int waits = 0; !ended_.load(std::memory_order_acquire); ++waits) {
            const uint32_t job = current_.load(std::memory_order_acquire);
            if (job == last) {
                if (const Upcoming* next = upcoming_.load(std::memory_order_acquire); next != expected) {
                    expected = next;
                    ahead = next ? next->weights(member, members_) : Weights{nullptr, 0};
                    if (ahead.count > kMostAhead) ahead.count = kMostAhead;
                }
                if (ahead.count)
                    prefetch(ahead);
                else if (waits > kSpins && resting_.load(std::memory_order_relaxed))
                    std::this_thread::sleep_for(kNap);
                else
                    wait(waits);
                continue;
            }
            work_on(last = job, member);
            waits = 0;
        }
    }

    void end() { ended_.store(true, std::memory_order_release); }

    // Waits a moment. After many waits, other threads get the processor.
    static void wait(int waits) {
        if (waits > kSpins) return std::this_thread::yield();
#if defined(__x86_64__)
        _mm_pause();
#elif defined(__aarch64__)
        __asm__ volatile("yield");
#endif
    }

  private:
    static constexpr uint32_t kShare = 4;  // a piece is this part of what is left of a range, so that the last ones are short
    static constexpr int kSpins = 4096;    // waits without giving the processor to other threads
    static constexpr std::chrono::microseconds kNap{50};  // a helper's sleep, little beside a read of the disk
    static constexpr size_t kMostAhead = 128 << 10;  // bytes of a job that a waiting helper prefetches
    static constexpr size_t kLine = 64;

    // Prefetches the next line into the L2 cache.
    static void prefetch(Weights& ahead) {
        __builtin_prefetch(ahead.at, 0, 2);
        const size_t count = ahead.count < kLine ? ahead.count : kLine;
        ahead.at += count;
        ahead.count -= count;
    }

    // The indices that a member computes first. Both ends have the number of the job in their upper half, because a thread that
    // still looks for work of the job before may read one of them before and the other after the leader has set it.
    struct alignas(64) Range {
        std::atomic<uint64_t> next{0};
        std::atomic<uint64_t> end{0};
    };

    // Computes the member's own range, and then what is left of the others'. An exception would leave indices undone, for which
    // the leader would wait forever.
    void work_on(uint32_t job, size_t member) noexcept {
        for (size_t i = 0; i < members_; ++i) {
            Range& range = ranges_[(member + i) % members_];
            uint64_t at = range.next.load(std::memory_order_acquire);
            while (at >> 32 == job) {
                const auto first = static_cast<uint32_t>(at);
                const uint64_t bound = range.end.load(std::memory_order_relaxed);
                const auto end = static_cast<uint32_t>(bound);
                if (bound >> 32 != job || first >= end) break;
                const uint32_t count = (end - first + kShare - 1) / kShare;
                if (!range.next.compare_exchange_weak(at, at + count, std::memory_order_acq_rel)) continue;
                // The job cannot end before this piece, so its function does not change here.
                const Work work = work_.load(std::memory_order_relaxed);
                void* const user = user_.load(std::memory_order_relaxed);
                for (uint32_t index = first; index < first + count; ++index) work(user, index);
                done_.fetch_add(count, std::memory_order_acq_rel);
                at = range.next.load(std::memory_order_acquire);
            }
        }
    }

    const size_t members_;
    uint64_t job_ = 0;
    std::atomic<Work> work_{nullptr};
    std::atomic<void*> user_{nullptr};
    alignas(64) std::atomic<uint32_t> current_{0};
    std::atomic<const Upcoming*> upcoming_{nullptr};
    alignas(64) std::atomic<uint32_t> done_{0};
    alignas(64) std::atomic<size_t> joined_{0};
    std::atomic<bool> ended_{false}, resting_{false};
    Range ranges_[kMost];
};

}  // namespace edgedec
