#include "rounds.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>

#include "half.hpp"

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

// Reads the embedding of each token.
void embed(const RoundsArguments& it, const Tokens& tokens) {
    constexpr size_t kBytes[] = {1, 4, 2, 2};
    const auto stored = static_cast<Stored>(it.stored);
    const size_t bytes = static_cast<size_t>(it.width) * kBytes[it.stored];
    std::vector<uint8_t> row(bytes);
    float* to = it.embed;
    for (const int32_t token : tokens) {
        const auto offset = static_cast<off_t>(it.offset + token * static_cast<int64_t>(bytes));
        if (pread(static_cast<int>(it.file), row.data(), bytes, offset) != static_cast<ssize_t>(bytes))
            throw std::runtime_error("a row of the embedding cannot be read from the bundle");
        if (stored == Stored::int8) {
            const float scale = it.scales[token];
            convert<int8_t>(row.data(), to, it.width, [scale](int8_t code) { return static_cast<float>(code) * scale; });
        } else if (stored == Stored::float32) {
            std::memcpy(to, row.data(), bytes);
        } else if (stored == Stored::bfloat16) {
            convert<uint16_t>(row.data(), to, it.width, from_bfloat16);
        } else {
            convert<uint16_t>(row.data(), to, it.width, from_half);
        }
        to += it.width;
    }
}

// Writes the inputs of a pass.
void fill(const RoundsArguments& it, const Tree& tree, int64_t past) {
    embed(it, tree.tokens);
    for (int64_t node = 0; node < tree.size(); ++node) {
        const int32_t parent = tree.parents[static_cast<size_t>(node)];
        it.row_positions[node] = node ? it.row_positions[parent] + 1 : past;
        it.visible[node] = uint64_t{1} << node | (node ? it.visible[parent] : 0);
    }
    it.sequence[0] = tree.size();
    it.sequence[1] = past;
    std::copy_n(it.blocks, (past + tree.size() + it.block_rows - 1) / it.block_rows, it.table);
}

class Rounds {
  public:
    explicit Rounds(RoundsArguments& arguments)
        : it_(arguments), growth_(arguments.draft), sampler_(*arguments.sampling), nodes_(static_cast<size_t>(arguments.result_nodes)) {}

    void run() {
        const auto began = Clock::now();
        int64_t tokens = 0;
        bool ended = false;
        it_.rounds = 0;
        it_.stop = static_cast<int64_t>(Stop::limit);
        while (!ended && it_.rounds < it_.most_rounds && tokens < it_.most_tokens) {
            if (it_.rounds && seconds_between(began, Clock::now()) >= it_.most_seconds) return;
            const int64_t before = it_.length;
            const Stop stop = round();
            if (stop != Stop::limit) {
                it_.stop = static_cast<int64_t>(stop);
                return;
            }
            tokens += it_.length - before;
            const int32_t* end = it_.ends + it_.end_count;
            for (int64_t at = before; at < it_.length; ++at) ended = ended || std::find(it_.ends, end, it_.text[at]) != end;
        }
    }

  private:
    Stop round() {
        const int64_t past = it_.length - 1, left = std::min(it_.positions, it_.held * it_.block_rows) - past;
        if (left < 1) return Stop::rows;
        const auto began = Clock::now();
        const Text text{it_.text, it_.length};
        const int64_t room = std::min(it_.nodes, left);
        const Tree& tree = growth_.grow(static_cast<Policy>(it_.policy), text, room, std::min(it_.depth, room - 1), it_.levels);
        const auto grown = Clock::now();
        fill(it_, tree, past);
        const auto filled = Clock::now();
        if (it_.run(static_cast<int32_t>(tree.size()))) return Stop::failed;
        const auto ran = Clock::now();
        const bool learns = it_.draft && it_.draft->learns_top();
        int32_t next = 0;
        try {
            next = verify(sampler_, tree, it_.logits, it_.vocab, text, it_.dropped + it_.length, path_, learns ? &tops_ : nullptr);
        } catch (const NoToken&) {
            it_.bad_node = path_.back();
            return Stop::no_token;
        }
        const auto verified = Clock::now();
        const auto count = static_cast<int64_t>(path_.size());
        if (path_.back() != count - 1 && it_.move(it_.cache_numbers, it_.cache_count, it_.cache, it_.blocks, it_.held, past,
                                                  path_.data(), count))
            return Stop::failed;
        accepted_.clear();
        for (const int32_t node : path_) accepted_.push_back(tree.tokens[static_cast<size_t>(node)]);
        if (it_.draft) it_.draft->observe(accepted_, next, tops_);
        for (size_t at = 1; at < accepted_.size(); ++at) it_.text[it_.length++] = accepted_[at];
        it_.text[it_.length++] = next;
        record(tree);
        const auto row = it_.rounds++;
        it_.draft_seconds[row] = seconds_between(began, grown);
        it_.pass_seconds[row] = seconds_between(filled, ran);
        it_.verify_seconds[row] = seconds_between(grown, filled) + seconds_between(ran, verified);
        it_.commit_seconds[row] = seconds_between(verified, Clock::now());
        return Stop::limit;
    }

    void record(const Tree& tree) {
        const auto row = static_cast<size_t>(it_.rounds);
        it_.tree_sizes[row] = static_cast<int32_t>(tree.size());
        it_.path_sizes[row] = static_cast<int32_t>(path_.size());
        std::copy(tree.tokens.begin(), tree.tokens.end(), it_.tokens + row * nodes_);
        std::copy(tree.parents.begin(), tree.parents.end(), it_.parents + row * nodes_);
        std::copy(path_.begin(), path_.end(), it_.path + row * nodes_);
    }

    RoundsArguments& it_;
    Growth growth_;
    Sampler sampler_;
    size_t nodes_;
    Tokens path_, accepted_;
    std::vector<TopTokens> tops_;
};

}  // namespace

void run_rounds(RoundsArguments& arguments) { Rounds(arguments).run(); }

}  // namespace edgedec
