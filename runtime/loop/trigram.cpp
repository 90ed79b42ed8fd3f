// The drafter `trigram` (runtime/drafters/trigram.py).
#include "drafts.hpp"
#include "table.hpp"

namespace edgedec {
namespace {

constexpr double kStep = 0.04, kCap = 3.0, kVisits = 150.0;
constexpr int64_t kRecent = 16;
constexpr int kSuccessors = 12;

struct Share {
    int32_t id;
    double share;
};

class Trigram final : public TextDraft {
  public:
    Trigram(int64_t vocab, int64_t entries, int64_t depth)
        : TextDraft(vocab, depth), table_(entries, kSuccessors), confirmed_(kRecent, depth + 1) {}

    void meet(Text text, const double*) override {
        const int64_t fresh = confirmed_.meet(text);
        if (fresh) count(text.ids + std::max<int64_t>(0, text.length - fresh - 2), text.ids + text.length);
    }

    void after(Text text, const Tokens& path, Guesses& guesses) override {
        if (text.length < 2) return;
        Tokens tokens(text.ids + text.length - 2, text.ids + text.length);
        tokens.insert(tokens.end(), path.begin(), path.end());
        double visits = kVisits;
        for (size_t at = 0; at < path.size(); ++at) {
            shares(tokens.data() + at);
            const auto one = std::find_if(shares_.begin(), shares_.end(), [&](const Share& share) { return share.id == path[at]; });
            visits *= one == shares_.end() ? 0.0 : one->share;
        }
        shares(tokens.data() + path.size());
        float sum = 0.0f;
        for (const Share& one : shares_)
            if (visits * one.share >= 1) {
                guesses.push_back({one.id, static_cast<float>(one.share)});
                sum += guesses.back().prob;
            }
        for (Guess& guess : guesses) guess.prob /= sum;
    }

    void observe(const Tokens& accepted, int32_t next, const std::vector<TopTokens>&) override {
        const Tokens history = confirmed_.advance(accepted, next);
        const auto size = static_cast<int64_t>(history.size());
        const int64_t most = std::max(kRecent, static_cast<int64_t>(accepted.size()) + 2);
        count(history.data() + std::max<int64_t>(0, size - most), history.data() + size);
    }

  private:
    // Increases the weight of each trigram of the tokens.
    void count(const int32_t* begin, const int32_t* end) {
        for (const int32_t* pair = begin; end - pair >= 3; ++pair) {
            const int32_t token = pair[2];
            if (token < 0 || token >= vocab) continue;
            const int64_t row = table_.claim(pair, 2);
            int32_t* ids = table_.ids(row);
            float* values = table_.values(row);
            int64_t at = std::find(ids, ids + kSuccessors, token) - ids;
            if (at == kSuccessors) {
                at = std::min_element(values, values + kSuccessors) - values;
                ids[at] = token;
                values[at] = 0.0f;
            }
            values[at] = static_cast<float>(std::min(static_cast<double>(values[at]) + kStep, kCap));
        }
    }

    // Sets `shares_` to those of the successors of a pair, the largest first.
    void shares(const int32_t* pair) {
        shares_.clear();
        const int64_t row = table_.find(pair, 2);
        if (row < 0) return;
        double sum = 0.0;
        for (int at = 0; at < kSuccessors; ++at) sum += static_cast<double>(table_.values(row)[at]);
        for (int at = 0; at < kSuccessors; ++at) {
            const auto value = static_cast<double>(table_.values(row)[at]);
            if (value != 0) shares_.push_back({table_.ids(row)[at], value});
        }
        std::stable_sort(shares_.begin(), shares_.end(), [](const Share& a, const Share& b) { return a.share > b.share; });
        for (Share& one : shares_) one.share /= sum;
    }

    ContextTable table_;
    Confirmed confirmed_;
    std::vector<Share> shares_;
};

}  // namespace

std::unique_ptr<Draft> open_trigram(int64_t vocab, int64_t entries, int64_t depth) {
    return std::make_unique<Trigram>(vocab, entries, depth);
}

}  // namespace edgedec
