#include "ahead.hpp"

#include <algorithm>
#include <exception>
#include <stdexcept>

#include "rounds.hpp"

namespace edgedec {

void Ahead::serve() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
        changed_.wait(lock, [this] { return closed_ || call_; });
        if (!call_) return;
        const RoundsArguments* call = call_;
        lock.unlock();
        std::string error;
        try {
            run_rounds(*call, this);
        } catch (const std::exception& failure) {
            error = failure.what();
        }
        lock.lock();
        call_ = nullptr;
        error_ = error;
        running_ = false;
        publish();
    }
}

void Ahead::begin(const RoundsArguments* call, int64_t window) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (running_) throw std::invalid_argument("rounds are running already");
    call_ = call;
    window_ = window;
    finished_ = published_ = taken_ = expected_ = 0;
    running_ = true;
    stopping_ = false;
    error_.clear();
    changed_.notify_all();
}

int64_t Ahead::take(int64_t count, bool& running) {
    std::unique_lock<std::mutex> lock(mutex_);
    expected_ = count;
    changed_.notify_all();
    changed_.wait(lock, [this, count] { return !running_ || published_ - taken_ >= count; });
    expected_ = 0;
    const int64_t rounds = std::min(count, published_ - taken_);
    taken_ += rounds;
    running = running_ || taken_ < published_;
    if (!rounds && !error_.empty()) throw std::runtime_error(error_);
    return rounds;
}

void Ahead::stop(bool wait) {
    std::unique_lock<std::mutex> lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
    if (wait) changed_.wait(lock, [this] { return !running_; });
}

void Ahead::close() {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = closed_ = true;
    changed_.notify_all();
}

bool Ahead::may_begin() {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto ready = [this] { return stopping_ || finished_ - taken_ - expected_ < window_; };
    if (!ready()) {
        publish();
        changed_.wait(lock, ready);
    }
    return !stopping_;
}

void Ahead::finish() {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++finished_;
}

void Ahead::announce() {
    const std::lock_guard<std::mutex> lock(mutex_);
    publish();
}

void Ahead::publish() {
    published_ = finished_;
    changed_.notify_all();
}

}  // namespace edgedec
