// Rounds that run ahead: a thread runs the rounds of a call, while another one takes the results of those that have finished.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>

namespace edgedec {

struct RoundsArguments;

// Functions for the thread that takes results: `begin`, `take`, `stop`, `close`. Functions for the thread that runs rounds:
// `serve`, and within it `may_begin` and `finish`; the target's `run` calls `announce`.
class Ahead {
  public:
    // Runs the rounds of each call until `close`.
    void serve();

    // Starts a call. At most `window` finished rounds wait until they are taken.
    void begin(const RoundsArguments* call, int64_t window);

    // Waits for `count` finished rounds, or for the end of the call. Returns the number of rounds, at most `count`, and sets
    // `running` if further ones follow.
    int64_t take(int64_t count, bool& running);

    // Ends the call after the round that runs now. With `wait` the function returns when it has ended.
    void stop(bool wait);

    // Makes `serve` return. No function may be called afterwards.
    void close();

    // Returns true once a further round may begin; false if the call shall end.
    bool may_begin();

    // Notes that a round has finished. `take` returns it when the next pass has begun, or none follows.
    void finish();

    // Makes the finished rounds available. The next pass calls it once nothing that `take`'s caller does can delay it.
    void announce();

  private:
    void publish();

    std::mutex mutex_;
    std::condition_variable changed_;
    const RoundsArguments* call_ = nullptr;
    int64_t window_ = 1, finished_ = 0, published_ = 0, taken_ = 0, expected_ = 0;  // expected_: rounds that `take` waits for
    bool running_ = false, stopping_ = false, closed_ = false;
    std::string error_;
};

}  // namespace edgedec
