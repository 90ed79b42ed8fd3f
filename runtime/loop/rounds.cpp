#include "rounds.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <stdexcept>

namespace edgedec {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point from, Clock::time_point to) {
    return std::chrono::duration<double>(to - from).count();
}

// The rounds of one text.
class TextRounds {
  public:
    TextRounds(const TargetArguments& target, TextArguments& arguments)
        : target_(target),
          text_(arguments),
          growth_(arguments.draft),
          sampler_(*arguments.sampling),
          nodes_(static_cast<size_t>(arguments.result_nodes)),
          learns_(arguments.draft && arguments.draft->learns_top()) {
        growth_.couple(static_cast<Coupling>(arguments.coupling), &sampler_, arguments.dropped);
        text_.rounds = 0;
        text_.stop = static_cast<int64_t>(Stop::limit);
    }

    // Grows a tree and returns its number of nodes; 0 if there is no room for it.
    int64_t grow() {
        const auto began = Clock::now();
        past_ = text_.length - 1;
        held_ = text_.held;
        const int64_t left = std::min(text_.positions, held_ * target_.block_rows) - past_;
        if (left < 1) {
            stop(Stop::rows);
            return 0;
        }
        const int64_t room = std::min(text_.nodes, left);
        const int64_t depth = std::min(text_.depth, room - 1);
        try {
            tree_ = &growth_.grow(static_cast<Policy>(text_.policy), {text_.text, text_.length}, room, depth, text_.levels,
                                  text_.measured, text_.pass_costs);
        } catch (const DraftFailed&) {
            stop(Stop::draft);
            return 0;
        }
        draft_seconds_ = seconds_between(began, Clock::now());
        return tree_->size();
    }

    // Writes the inputs of the text's rows, which begin at `row`.
    void fill(TargetPass& pass, int64_t row) {
        const auto began = Clock::now();
        row_ = row;
        pass.add({tree_->tokens, tree_->parents, past_, text_.blocks, text_.slot});
        verify_seconds_ = seconds_between(began, Clock::now());
    }

    // Accepts and commits a path after the pass. Returns false if no further round may begin.
    bool accept() {
        const auto began = Clock::now();
        const Text text{text_.text, text_.length};
        int32_t next = 0;
        try {
            next = verify(sampler_, *tree_, logit_rows(target_).from(row_), text, text_.dropped + text_.length, path_,
                          learns_ ? &tops_ : nullptr);
        } catch (const NoToken&) {
            text_.bad_row = row_ + path_.back();
            return stop(Stop::no_token);
        }
        const auto verified = Clock::now();
        if (!commit_path(target_, text_.blocks, held_, text_.slot, past_, path_)) return stop(Stop::unmoved);
        accepted_.clear();
        for (const int32_t node : path_) accepted_.push_back(tree_->tokens[static_cast<size_t>(node)]);
        if (text_.draft) text_.draft->observe(accepted_, next, tops_);
        for (size_t at = 1; at < accepted_.size(); ++at) append(accepted_[at]);
        append(next);
        record();
        const auto row = text_.rounds++;
        text_.draft_seconds[row] = draft_seconds_;
        text_.verify_seconds[row] = verify_seconds_ + seconds_between(began, verified);
        text_.commit_seconds[row] = seconds_between(verified, Clock::now());
        return !ended_ && written_ < text_.most_tokens;
    }

    // Number of rounds that have finished.
    int64_t rounds() const { return text_.rounds; }

    bool stop(Stop reason) {
        text_.stop = static_cast<int64_t>(reason);
        return false;
    }

  private:
    void append(int32_t token) {
        const int32_t* end = text_.ends + text_.end_count;
        ended_ = ended_ || std::find(text_.ends, end, token) != end;
        text_.text[text_.length++] = token;
        ++written_;
    }

    void record() {
        const auto row = static_cast<size_t>(text_.rounds);
        text_.tree_sizes[row] = static_cast<int32_t>(tree_->size());
        text_.path_sizes[row] = static_cast<int32_t>(path_.size());
        std::copy(tree_->tokens.begin(), tree_->tokens.end(), text_.tokens + row * nodes_);
        std::copy(tree_->parents.begin(), tree_->parents.end(), text_.parents + row * nodes_);
        std::copy(path_.begin(), path_.end(), text_.path + row * nodes_);
    }

    const TargetArguments& target_;
    TextArguments& text_;
    Growth growth_;
    Sampler sampler_;
    size_t nodes_;
    bool learns_, ended_ = false;
    const Tree* tree_ = nullptr;
    int64_t past_ = 0, held_ = 0, row_ = 0, written_ = 0;
    double draft_seconds_ = 0, verify_seconds_ = 0;
    Tokens path_, accepted_;
    std::vector<TopTokens> tops_;
};

class Rounds {
  public:
    explicit Rounds(const RoundsArguments& arguments) : call_(arguments) {
        for (int64_t at = 0; at < call_.count; ++at)
            texts_.push_back(std::make_unique<TextRounds>(*call_.target, *call_.texts[at]));
    }

    void run() {
        const auto began = Clock::now();
        for (int64_t rounds = 0; rounds < call_.most_rounds; ++rounds) {
            if (rounds && (paused() || seconds_between(began, Clock::now()) >= call_.most_seconds)) break;
            if (!round(rounds)) break;
        }
        if (call_.target->settle) call_.target->settle(call_.target->cache);
    }

  private:
    bool paused() const { return call_.pause && __atomic_load_n(call_.pause, __ATOMIC_RELAXED) != 0; }

    // Runs a round. Returns whether a further round may begin.
    bool round(int64_t number) {
        int64_t total = 0;
        rows_.clear();
        for (const auto& text : texts_) {
            rows_.push_back(text->grow());
            total += rows_.back();
        }
        if (std::find(rows_.begin(), rows_.end(), 0) != rows_.end()) return false;
        if (total > call_.target->rows) throw std::invalid_argument("the trees have more rows than a pass");
        TargetPass pass(*call_.target, total);
        int64_t row = 0;
        for (size_t at = 0; at < texts_.size(); ++at) {
            texts_[at]->fill(pass, row);
            row += rows_[at];
        }
        const auto filled = Clock::now();
        if (!pass.submit() || !pass.wait()) {
            for (const auto& text : texts_) text->stop(Stop::failed);
            return false;
        }
        call_.pass_seconds[number] = call_.target->seconds ? *call_.target->seconds : seconds_between(filled, Clock::now());
        call_.pass_began[number] = seconds_between(Clock::time_point(), filled);
        bool goes_on = true;
        for (const auto& text : texts_) goes_on = text->accept() && goes_on;
        // A reader takes a round of all texts. One that some of them lack is for it as if it had not been.
        const auto has = [number](const auto& text) { return text->rounds() > number; };
        if (call_.follower && std::all_of(texts_.begin(), texts_.end(), has))
            goes_on = call_.follower->finish() && goes_on;
        return goes_on;
    }

    const RoundsArguments& call_;
    std::vector<std::unique_ptr<TextRounds>> texts_;
    std::vector<int64_t> rows_;
};

}  // namespace

void run_rounds(const RoundsArguments& arguments) { Rounds(arguments).run(); }

}  // namespace edgedec
