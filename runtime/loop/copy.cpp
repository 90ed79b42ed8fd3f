// The drafter `copy` (runtime/drafters/copy.py).
#include "drafts.hpp"

namespace edgedec {
namespace {

constexpr int64_t kLeast = 2, kMost = 8, kTries = 64, kSure = 3, kNear = 8, kReach = 4, kRecovery = 8;

// The state of copying after a token (`_State`).
struct State {
    int64_t cursor = -1, run = 0, initial_run = 0, broken_at = -1, since_break = 0, need = kLeast;
};

// The input and the text after it, with the state of copying after each token (`_Copied`).
class Copied final : public Places {
  public:
    Copied(int64_t capacity, int64_t depth)
        : Places(capacity, depth), states_(static_cast<size_t>(std::max<int64_t>(2, capacity) + depth)) {}

    void read(int64_t length) {
        shrink(0);
        indexed_ = length - 1;
    }

    const State& state(int64_t at) const { return states_[static_cast<size_t>(at)]; }

  protected:
    void push(int64_t at) override {
        Places::push(at);
        const int64_t position = at + start_;
        if (position < indexed_) return;
        const bool first = at == 0 || position == indexed_;
        states_[static_cast<size_t>(at)] = first ? seek(-1, 0, kLeast) : step(state(at - 1), id(at));
    }

  private:
    State step(const State& last, int32_t token) const {
        int64_t need = last.need, broken_at = last.broken_at, since_break = last.since_break;
        if (last.cursor >= 0) {
            if (id(last.cursor) == token) {
                if (last.run + 1 - last.initial_run >= kSure) need = kLeast;
                const int64_t cursor = last.cursor + start_ < indexed_ ? last.cursor + 1 : -1;
                return {cursor, last.run + 1, last.initial_run, broken_at, since_break + 1, need};
            }
            if (last.run == last.initial_run && last.initial_run >= kLeast) need = std::min(need + 1, kMost);
            if (last.run >= kSure) {
                broken_at = last.cursor;
                since_break = -1;
            }
        }
        return seek(broken_at, since_break + 1, need);
    }

    State seek(int64_t broken_at, int64_t since_break, int64_t need) const {
        const Match match = longest(need, kMost, kTries, std::max<int64_t>(0, broken_at));
        if (match.length) return {match.place + 1, match.length, match.length, broken_at, since_break, need};
        if (broken_at >= 0 && since_break < kRecovery) {
            const int64_t end = indexed_ - start_;
            const int32_t token = id(length() - 1);
            for (int64_t at = broken_at; at < std::min(broken_at + kNear, end); ++at)
                if (id(at) == token) return {at + 1, 1, 1, broken_at, since_break, need};
            if (since_break == 0 && broken_at < end) return {broken_at + 1, 0, 0, broken_at, since_break, need};
        }
        return {-1, 0, 0, broken_at, since_break, need};
    }

    std::vector<State> states_;
};

class Copy final : public TextDraft {
  public:
    Copy(int64_t vocab, int64_t positions, int64_t depth)
        : TextDraft(vocab, depth), copied_(positions, depth), confirmed_(16, depth + 1) {}

    void meet(Text text, const double*) override {
        if (confirmed_.meet(text)) copied_.read(text.length);
    }

    void after(Text text, const Tokens& path, Guesses& guesses) override {
        copied_.follow(text, path);
        const auto size = static_cast<int64_t>(path.size());
        if (size >= std::max(kReach, kReach * copied_.state(copied_.length() - size - 1).run)) return;
        const int64_t cursor = copied_.state(copied_.length() - 1).cursor;
        if (cursor >= 0) certain(copied_.id(cursor), guesses);
    }

    void observe(const Tokens& accepted, int32_t next, const std::vector<TopTokens>&) override {
        confirmed_.advance(accepted, next);
    }

  private:
    Copied copied_;
    Confirmed confirmed_;
};

}  // namespace

std::unique_ptr<Draft> open_copy(int64_t vocab, int64_t positions, int64_t depth) {
    return std::make_unique<Copy>(vocab, positions, depth);
}

}  // namespace edgedec
