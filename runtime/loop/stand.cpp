// The drafter `stand` (runtime/drafters/stand.py).
#include "drafts.hpp"
#include "table.hpp"

namespace edgedec {
namespace {

constexpr int64_t kLongest = 4;

class Stand final : public TextDraft {
  public:
    Stand(int64_t vocab, int64_t entries, int64_t depth)
        : TextDraft(vocab, depth), table_(entries, kTop), confirmed_(kLongest, depth + 1) {}

    void meet(Text text, const double*) override {
        confirmed_.meet(text);
        tail_.assign(text.ids + std::max<int64_t>(0, text.length - kLongest), text.ids + text.length);
    }

    void after(Text, const Tokens& path, Guesses& guesses) override {
        Tokens context = tail_;
        context.insert(context.end(), path.begin(), path.end());
        const auto size = static_cast<int64_t>(context.size());
        for (int64_t begin = std::max<int64_t>(0, size - kLongest); begin < size; ++begin) {
            const int64_t row = table_.find(context.data() + begin, size - begin);
            if (row < 0) continue;
            const float* values = table_.values(row);
            int used = 0;
            float sum = 0.0f;
            for (; used < kTop && values[used] != 0.0f; ++used) sum += values[used];
            for (int at = 0; at < used; ++at) guesses.push_back({table_.ids(row)[at], values[at] / sum});
            return;
        }
    }

    void observe(const Tokens& accepted, int32_t next, const std::vector<TopTokens>& top) override {
        const Tokens history = confirmed_.advance(accepted, next);
        const auto root = static_cast<int64_t>(history.size() - accepted.size()) - 1;
        for (size_t node = 0; node < accepted.size(); ++node) {
            const int64_t end = root + 1 + static_cast<int64_t>(node);
            TopTokens after;
            for (const Guess& one : top.empty() ? TopTokens{{history[static_cast<size_t>(end)], 1.0f}} : top[node])
                if (one.prob > 0 && one.id >= 0 && one.id < vocab) after.push_back(one);
            if (after.empty()) continue;
            for (int64_t size = 1; size <= std::min(kLongest, end); ++size) learn(history.data() + end - size, size, after);
        }
    }

    bool learns_top() const override { return true; }

  private:
    void learn(const int32_t* context, int64_t size, const TopTokens& after) {
        const int64_t row = table_.claim(context, size);
        const int32_t count = table_.count(row);
        int32_t* ids = table_.ids(row);
        float* values = table_.values(row);
        if (!count) {
            for (size_t at = 0; at < after.size() && at < kTop; ++at) {
                ids[at] = after[at].id;
                values[at] = after[at].prob;
            }
        } else {
            std::vector<std::pair<int32_t, double>> mean;
            const auto kept = static_cast<float>(static_cast<double>(count) / (count + 1));
            for (int at = 0; at < kTop; ++at)
                if (ids[at] != -1) mean.emplace_back(ids[at], static_cast<double>(values[at] * kept));
            for (const Guess& one : after) {
                const auto share = static_cast<double>(one.prob / static_cast<float>(count + 1));
                auto at = std::find_if(mean.begin(), mean.end(), [&](const auto& entry) { return entry.first == one.id; });
                if (at == mean.end()) mean.emplace_back(one.id, share);
                else at->second += share;
            }
            std::sort(mean.begin(), mean.end(), [](const auto& a, const auto& b) {
                return a.second != b.second ? a.second > b.second : a.first < b.first;
            });
            for (size_t at = 0; at < mean.size() && at < kTop; ++at) {
                ids[at] = mean[at].first;
                values[at] = static_cast<float>(mean[at].second);
            }
        }
        table_.count(row) = count + 1;
    }

    ContextTable table_;
    Confirmed confirmed_;
    Tokens tail_;
};

}  // namespace

std::unique_ptr<Draft> open_stand(int64_t vocab, int64_t entries, int64_t depth) {
    return std::make_unique<Stand>(vocab, entries, depth);
}

}  // namespace edgedec
