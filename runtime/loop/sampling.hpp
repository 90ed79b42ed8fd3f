// The next token after a row of logits. The definitions are Python's: runtime/sampling/sampling.py, runtime/sampling/position_random.py and
// runtime/sampling/portable_math.py, whose results are equal to the last bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "drafts.hpp"

namespace edgedec {

// The options of a text, as `CompiledSampling` of runtime/loop/sampling.py lays them out.
struct SamplingOptions {
    double temperature, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty;
    int64_t top_k, repeat_last_n, vocab_limit, biases;
    const int32_t* bias_ids;
    const double* bias_values;
    uint64_t seed, sample;
};

// A row whose logits give no token: one is NaN or +inf, all are -inf, or a bias forbids all.
struct NoToken {};

// A row of logits. With `ids`, which ascend, it has the logits of these `found` tokens only, at their places; the others are
// less likely, and their places have no meaning.
struct LogitRow {
    float* logits;
    int64_t vocab;
    const int32_t* ids = nullptr;
    int64_t found = 0;
};

// Rows of logits, [rows][vocab], and the ids of each, [rows][found].
struct LogitRows {
    float* logits;
    int64_t vocab;
    const int32_t* ids = nullptr;
    int64_t found = 0;

    LogitRow row(int64_t number) const {
        return {logits + number * vocab, vocab, ids ? ids + number * found : nullptr, found};
    }
    LogitRows from(int64_t number) const {
        const LogitRow first = row(number);
        return {first.logits, vocab, first.ids, found};
    }
};

class Sampler {
  public:
    explicit Sampler(const SamplingOptions& options) : options_(options) {}

    // Returns the token at a position: the likeliest one at temperature 0, otherwise a draw. The logits are changed meanwhile if
    // an option changes logits, and have their old values afterwards.
    int32_t token(const LogitRow& row, Text text, const Tokens& path, int64_t position);

    // Sets `probs` [vocab] to the distribution that `Sampler.distribution` returns.
    void distribution(const LogitRow& row, Text text, const Tokens& path, float* probs);

    // Sets `top` to the likeliest tokens of a row (`top_taps` of runtime/sampling/target_top.py): of the logits at temperature 0,
    // otherwise of the distribution that `token` was called for last.
    void likeliest(const LogitRow& row, TopTokens& top) const;

    // Processes a draft's own probabilities as the logits are: `Sampler.sparse`. None may be left.
    void sparse(Guesses& guesses, Text text, const Tokens& path);

    // Weighs a distribution with the numbers of a position: `coupled` of runtime/coupling.py.
    void couple(Guesses& guesses, int64_t position) const;

  private:
    struct Probable {
        int32_t id;
        float prob;
    };

    bool remember(Text text, const Tokens& path);
    float changed(float before, int32_t id) const;
    int64_t penalize(float* logits, int64_t size, Text text, const Tokens& path);
    void restore(float* logits);
    void keep(const LogitRow& row, int64_t size);
    void keep_top(const LogitRow& row, int64_t size);
    void weigh(const float* logits);
    int64_t scores(const LogitRow& row, int64_t size, Text text, const Tokens& path);

    const SamplingOptions& options_;
    Tokens ids_, recent_;
    std::vector<double> weights_;
    std::vector<Probable> probable_;
    std::vector<std::pair<int32_t, float>> changed_;  // ids whose logits are changed, and their old values
};

// Returns the first of the largest of a row's first n logits; throws NoToken if it is not finite or a logit is NaN.
int64_t largest(const LogitRow& row, int64_t n);

}  // namespace edgedec
