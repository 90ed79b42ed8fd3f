#include "rounds.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <stdexcept>

#include "products/half.hpp"

namespace edgedec {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point from, Clock::time_point to) {
    return std::chrono::duration<double>(to - from).count();
}

template <class Number, class Convert>
void convert(const uint8_t* from, float* to, int64_t width, const Convert& value_of) {
    for (int64_t at = 0; at < width; ++at) {
        Number number;
        std::memcpy(&number, from + static_cast<size_t>(at) * sizeof(Number), sizeof(Number));
        to[at] = value_of(number);
    }
}

float from_bfloat16(uint16_t number) {
    const uint32_t bits = static_cast<uint32_t>(number) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
}

// Reads bytes of the bundle's weights.
template <class Number>
void read_row(const TargetArguments& target, int64_t offset, std::vector<Number>& row) {
    const size_t bytes = row.size() * sizeof(Number);
    if (pread(static_cast<int>(target.file), row.data(), bytes, static_cast<off_t>(offset)) != static_cast<ssize_t>(bytes))
        throw std::runtime_error("a row of the embedding cannot be read from the bundle");
}

// Writes ternary rows: the sum over the planes of trit * scale, or with tied planes their digits' integer * scale.
void embed_ternary(const TargetArguments& target, const Tokens& tokens, float* to) {
    const int64_t groups = target.group ? (target.width + target.group - 1) / target.group : 0;
    std::vector<uint8_t> row(static_cast<size_t>(target.row_bytes));
    std::vector<float> scales(static_cast<size_t>(groups));
    std::vector<uint16_t> halves(static_cast<size_t>(target.half_scales ? groups : 0));
    std::vector<float> digits(static_cast<size_t>(target.width));
    for (const int32_t token : tokens) {
        std::fill(digits.begin(), digits.end(), 0.0f);
        std::fill(to, to + target.width, 0.0f);
        for (int64_t plane = 0; plane < target.planes; ++plane) {
            read_row(target, target.offset + (plane * target.vocab + token) * target.row_bytes, row);
            const bool scaled = !target.tied || plane == target.planes - 1;
            if (groups && scaled) {
                const int64_t before = (target.tied ? 0 : plane * target.vocab) + token;
                if (target.half_scales) {
                    read_row(target, target.scales_offset + before * groups * 2, halves);
                    std::transform(halves.begin(), halves.end(), scales.begin(), from_half);
                } else {
                    read_row(target, target.scales_offset + before * groups * 4, scales);
                }
            }
            for (int64_t at = 0; at < target.width; ++at) {
                const int code = row[static_cast<size_t>(at / 4)] >> 2 * (at % 4) & 3;
                float& digit = digits[static_cast<size_t>(at)];
                digit = (target.tied ? 3.0f * digit : 0.0f) + static_cast<float>(code - 2);
                if (scaled) to[at] += digit * (groups ? scales[static_cast<size_t>(at / target.group)] : target.scales[0]);
            }
        }
        to += target.width;
    }
}

// Writes the embedding of each token to `to`.
void embed(const TargetArguments& target, const Tokens& tokens, float* to) {
    constexpr size_t kBytes[] = {1, 4, 2, 2};
    const auto stored = static_cast<Stored>(target.stored);
    if (stored == Stored::ternary) {
        embed_ternary(target, tokens, to);
        return;
    }
    const size_t bytes = static_cast<size_t>(target.width) * kBytes[target.stored];
    std::vector<uint8_t> row(bytes);
    for (const int32_t token : tokens) {
        read_row(target, target.offset + token * static_cast<int64_t>(bytes), row);
        if (stored == Stored::int8) {
            const float scale = target.scales[token];
            convert<int8_t>(row.data(), to, target.width, [scale](int8_t code) { return static_cast<float>(code) * scale; });
        } else if (stored == Stored::float32) {
            std::memcpy(to, row.data(), bytes);
        } else if (stored == Stored::bfloat16) {
            convert<uint16_t>(row.data(), to, target.width, from_bfloat16);
        } else {
            convert<uint16_t>(row.data(), to, target.width, from_half);
        }
        to += target.width;
    }
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
        text_.rounds = 0;
        text_.stop = static_cast<int64_t>(Stop::limit);
    }

    // Grows a tree and returns its number of nodes; 0 if there is no room for it.
    int64_t grow() {
        const auto began = Clock::now();
        past_ = text_.length - 1;
        held_ = __atomic_load_n(&text_.held, __ATOMIC_ACQUIRE);
        const int64_t left = std::min(text_.positions, held_ * target_.block_rows) - past_;
        if (left < 1) {
            stop(Stop::rows);
            return 0;
        }
        const int64_t room = std::min(__atomic_load_n(&text_.nodes, __ATOMIC_RELAXED), left);
        const int64_t depth = std::min(__atomic_load_n(&text_.depth, __ATOMIC_RELAXED), room - 1);
        tree_ = &growth_.grow(static_cast<Policy>(text_.policy), {text_.text, text_.length}, room, depth, text_.levels);
        draft_seconds_ = seconds_between(began, Clock::now());
        return tree_->size();
    }

    // Writes the inputs of sequence `number` of a pass, whose masks have `words` words in a row.
    // Returns the number of its blocks.
    int64_t fill(int64_t number, int64_t row, int64_t words, int64_t block) {
        const auto began = Clock::now();
        row_ = row;
        embed(target_, tree_->tokens, target_.embed + row * target_.width);
        int64_t* positions = target_.row_positions + row;
        uint64_t* visible = target_.visible + row * words;
        for (int64_t node = 0; node < tree_->size(); ++node) {
            const int32_t parent = tree_->parents[static_cast<size_t>(node)];
            positions[node] = node ? positions[parent] + 1 : past_;
            visible[node * words] = uint64_t{1} << node | (node ? visible[parent * words] : 0);
        }
        target_.sequences[2 * number] = tree_->size();
        target_.sequences[2 * number + 1] = past_;
        if (target_.commit) target_.slots[number] = text_.slot;
        const int64_t blocks = (past_ + tree_->size() + target_.block_rows - 1) / target_.block_rows;
        for (int64_t kind = 0; kind < target_.kinds; ++kind)
            std::copy_n(text_.blocks + kind * target_.block_stride, blocks, target_.table + kind * target_.table_stride + block);
        verify_seconds_ = seconds_between(began, Clock::now());
        return blocks;
    }

    // Accepts and commits a path after the pass. Returns false if no further round may begin.
    bool accept() {
        const auto began = Clock::now();
        const Text text{text_.text, text_.length};
        int32_t next = 0;
        try {
            next = verify(sampler_, *tree_, target_.logits + row_ * target_.vocab, target_.vocab, text, text_.dropped + text_.length,
                          path_, learns_ ? &tops_ : nullptr);
        } catch (const NoToken&) {
            text_.bad_row = row_ + path_.back();
            return stop(Stop::no_token);
        }
        const auto verified = Clock::now();
        const auto count = static_cast<int64_t>(path_.size());
        if (path_.back() != count - 1 && target_.move(target_.cache_numbers, target_.cache_count, target_.cache, text_.blocks,
                                                      target_.block_stride, held_, past_, path_.data(), count))
            return stop(Stop::unmoved);
        if (target_.commit && target_.commit(target_.state_numbers, target_.state_count, target_.states, target_.table_floats,
                                             target_.states + target_.table_floats + text_.slot * target_.slot_floats,
                                             target_.slot_floats, target_.slot_rows, path_.data(), count))
            return stop(Stop::unmoved);
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
            if (rounds && (paused() || seconds_between(began, Clock::now()) >= call_.most_seconds)) return;
            if (!round(rounds)) return;
        }
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
        int64_t row = 0, block = 0;
        const int64_t words = (total + 63) / 64;
        for (size_t at = 0; at < texts_.size(); ++at) {
            block += texts_[at]->fill(static_cast<int64_t>(at), row, words, block);
            row += rows_[at];
        }
        for (row = 0; row < total; ++row) call_.target->result_rows[row] = row;
        const auto filled = Clock::now();
        if (call_.target->run(call_.target->session, total, total)) {
            for (const auto& text : texts_) text->stop(Stop::failed);
            return false;
        }
        call_.pass_seconds[number] = seconds_between(filled, Clock::now());
        call_.pass_began[number] = seconds_between(Clock::time_point(), filled);
        bool goes_on = true;
        for (const auto& text : texts_) goes_on = text->accept() && goes_on;
        return goes_on;
    }

    const RoundsArguments& call_;
    std::vector<std::unique_ptr<TextRounds>> texts_;
    std::vector<int64_t> rows_;
};

}  // namespace

void run_rounds(const RoundsArguments& arguments) { Rounds(arguments).run(); }

}  // namespace edgedec
