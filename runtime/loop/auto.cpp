// The drafter `auto` (runtime/drafters/auto.py). No tree is grown ahead, so each text is confirmed, and a round has one choice.
#include "auto.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>

namespace edgedec {
namespace {

constexpr double kPriorWeight = 2, kCheapSeconds = 100e-6, kGain = 1.06, kSlope = 0.08;
constexpr int64_t kMemory = 20, kInterval = 12, kNone = -1;

class Auto final : public Draft {
  public:
    Auto(AutoArguments* arguments, int64_t vocab, int64_t depth)
        : Draft(vocab, depth), choice_(*arguments), end_(arguments->candidates + arguments->count) {}

    void meet(Text, const double* costs) override {
        costs_ = costs;
        met_.assign(static_cast<size_t>(choice_.count), 0);
    }

    void expand(Text text, const Tree& tree, const Tokens& nodes, std::vector<Guesses>& guesses) override {
        if (tree.size() == 1) choose(text, tree, nodes, guesses);
        else if (AutoCandidate* candidate = drafting()) ask(*candidate, text, tree, nodes, guesses);
        else guesses.assign(nodes.size(), {});
    }

    void observe(const Tokens& accepted, int32_t next, const std::vector<TopTokens>& top) override {
        const bool judges = choice_.chosen == choice_.outcomes++;
        const int64_t first = accepted.size() > 1 ? accepted[1] : next;
        for (AutoCandidate* candidate = choice_.candidates; candidate != end_; ++candidate) {
            if (judges && candidate->guess != kNone) {
                candidate->judged = std::min(candidate->judged + 1, kMemory);
                candidate->right += ((candidate->guess == first ? 1.0 : 0.0) - candidate->right) /
                                    (kPriorWeight + static_cast<double>(candidate->judged));
            }
            candidate->draft->observe(accepted, next, top);
        }
    }

    bool learns_top() const override {
        return std::any_of(choice_.candidates, end_, [](const AutoCandidate& one) { return one.draft->learns_top(); });
    }

    bool raw() const override { return drafting() && drafting()->draft->raw(); }

    bool batches() const override { return drafting() && drafting()->draft->batches(); }

  private:
    AutoCandidate* drafting() const { return choice_.drafting < 0 ? nullptr : choice_.candidates + choice_.drafting; }

    // Asks the candidates after the text, and sets `guesses` to those of the best one.
    void choose(Text text, const Tree& tree, const Tokens& nodes, std::vector<Guesses>& guesses) {
        double best = 1 / pass_seconds(1) * kGain;
        int64_t drafting = kNone;
        std::vector<Guesses> found;
        std::vector<int64_t> likeliest(static_cast<size_t>(choice_.count), kNone);
        std::vector<char> asked(likeliest.size(), 0);
        guesses.assign(nodes.size(), {});
        for (AutoCandidate* candidate = choice_.candidates; candidate != end_; ++candidate) {
            const auto at = static_cast<size_t>(candidate - choice_.candidates);
            if (cost(*candidate) >= kCheapSeconds && candidate->unseen + 1 < kInterval && value(*candidate) <= best) continue;
            asked[at] = 1;
            ask(*candidate, text, tree, nodes, found);
            if (found.empty() || found[0].empty()) continue;
            const auto most = std::max_element(found[0].begin(), found[0].end(),
                                               [](const Guess& a, const Guess& b) { return a.prob < b.prob; });
            likeliest[at] = most->id;
            if (const double reached = value(*candidate); reached > best) {
                best = reached;
                drafting = static_cast<int64_t>(at);
                guesses.swap(found);
            }
        }
        choice_.drafting = drafting;
        choice_.chosen = choice_.outcomes;
        for (size_t at = 0; at < asked.size(); ++at) {
            choice_.candidates[at].unseen = asked[at] ? 0 : choice_.candidates[at].unseen + 1;
            choice_.candidates[at].guess = likeliest[at];
        }
    }

    // Sets `guesses` to those of a candidate and measures the call, unless the candidate had to read a prompt.
    void ask(AutoCandidate& candidate, Text text, const Tree& tree, const Tokens& nodes, std::vector<Guesses>& guesses) {
        const double began = now();
        char& met = met_[static_cast<size_t>(&candidate - choice_.candidates)];
        if (!met) candidate.draft->meet(text, costs_);
        met = 1;
        candidate.draft->expand(text, tree, nodes, guesses);
        if (std::abs(text.length - candidate.read) <= depth + 1)
            candidate.seconds[candidate.calls++ % kMeasured] = now() - began;
        candidate.read = text.length;
    }

    // The median duration of a call in seconds; 0 before the first.
    static double cost(const AutoCandidate& candidate) {
        const int64_t count = std::min(candidate.calls, kMeasured);
        if (!count) return 0;
        double ordered[kMeasured];
        std::partial_sort_copy(candidate.seconds, candidate.seconds + count, ordered, ordered + count);
        return (ordered[(count - 1) / 2] + ordered[count / 2]) / 2;
    }

    // Tokens per second, or tokens per pass as long as nothing was measured.
    double value(const AutoCandidate& candidate) const {
        const double call = cost(candidate);
        double reach = 1, expected = 1, best = 0;
        for (int64_t level = 1; level <= depth; ++level) {
            reach *= candidate.right;
            expected += reach;
            best = std::max(best, expected / (pass_seconds(1 + level) + static_cast<double>(level) * call));
        }
        return best;
    }

    double pass_seconds(int64_t rows) const {
        if (costs_ && costs_[rows] != 0) return costs_[rows];
        return 1 + kSlope * static_cast<double>(rows - 1);
    }

    double now() const {
        if (choice_.clock) return choice_.clock();
        return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
    }

    AutoArguments& choice_;
    AutoCandidate* const end_;
    const double* costs_ = nullptr;
    std::vector<char> met_;  // for each candidate, 1 if it has met the text
};

}  // namespace

std::unique_ptr<Draft> open_auto(AutoArguments* arguments, int64_t vocab, int64_t depth) {
    return std::make_unique<Auto>(arguments, vocab, depth);
}

}  // namespace edgedec
