#include "sampling.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace edgedec {
namespace {

constexpr double kLeastExponent = -69.0;
constexpr double kLn2High = 0x1.62e42fee00000p-1, kLn2Low = 0x1.a39ef35793c76p-33, kLog2E = 0x1.71547652b82fep+0;
constexpr double kSqrtHalf = 0x1.6a09e667f3bcdp-1;
constexpr double kExpTerms[] = {1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880,
                                1.0 / 40320,      1.0 / 5040,      1.0 / 720,      1.0 / 120,     1.0 / 24,
                                1.0 / 6,          1.0 / 2,         1.0,            1.0};
constexpr double kAtanhTerms[] = {1.0 / 21, 1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13, 1.0 / 11,
                                  1.0 / 9,  1.0 / 7,  1.0 / 5,  1.0 / 3,  1.0};

template <size_t n>
double polynomial(const double (&terms)[n], double x) {
    double result = terms[0];
    for (size_t at = 1; at < n; ++at) {
        result *= x;
        result += terms[at];
    }
    return result;
}

double portable_exp(double x) {
    if (!(x >= kLeastExponent)) return 0.0;
    const double exponent = std::nearbyint(x * kLog2E);
    const double rest = (x - exponent * kLn2High) - exponent * kLn2Low;
    return std::ldexp(polynomial(kExpTerms, rest), static_cast<int>(exponent));
}

double portable_log(double x) {
    int exponent = 0;
    double mantissa = std::frexp(x, &exponent);
    if (mantissa < kSqrtHalf) {
        mantissa += mantissa;
        --exponent;
    }
    const double ratio = (mantissa - 1) / (mantissa + 1);
    const double series = polynomial(kAtanhTerms, ratio * ratio) * (ratio + ratio);
    return exponent * kLn2High + (exponent * kLn2Low + series);
}

constexpr uint64_t kGamma = 0x9E3779B97F4A7C15u;
constexpr uint64_t kTokens = 0;  // the stream of tokens

uint64_t mix(uint64_t z) {
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

uint64_t key_of(uint64_t seed, uint64_t sample, uint64_t position) {
    uint64_t key = mix(seed + kGamma) ^ sample;
    key = (mix(key) + kGamma) ^ position;
    return mix((mix(key) + kGamma) ^ kTokens);
}

double uniform(uint64_t key, int32_t id) {
    const uint64_t z = mix((static_cast<uint64_t>(id) + 1) * kGamma + key);
    return (static_cast<double>(z >> 12) + 0.5) * 0x1p-52;
}

// Orders tokens from the likeliest: by logit, and equal ones by id.
bool likelier(const std::pair<float, int32_t>& a, const std::pair<float, int32_t>& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
}

// Calls a function with each id below `size` that the row has, in ascending order.
template <class Visit>
void each_id(const LogitRow& row, int64_t size, const Visit& visit) {
    if (!row.ids) {
        for (int64_t id = 0; id < size; ++id) visit(static_cast<int32_t>(id));
        return;
    }
    for (int64_t at = 0; at < row.found && row.ids[at] < size; ++at) visit(row.ids[at]);
}

int64_t largest_found(const LogitRow& row, int64_t n) {
    int64_t best = -1;
    bool bad = false;
    each_id(row, n, [&](int32_t id) {
        const float value = row.logits[id];
        bad |= value != value;
        if (best < 0 || value > row.logits[best]) best = id;
    });
    if (bad || best < 0 || !std::isfinite(row.logits[best])) throw NoToken();
    return best;
}

}  // namespace

int64_t largest(const LogitRow& row, int64_t n) {
    if (row.ids) return largest_found(row, n);
    const float* logits = row.logits;
    constexpr int64_t kLanes = 32;
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    float most[kLanes];
    int32_t nan[kLanes] = {};
    std::fill_n(most, kLanes, -kInfinity);
    int64_t at = 0;
    for (; at + kLanes <= n; at += kLanes)
        for (int64_t lane = 0; lane < kLanes; ++lane) {
            const float value = logits[at + lane];
            most[lane] = value > most[lane] ? value : most[lane];
            nan[lane] |= value != value;
        }
    float top = -kInfinity;
    int32_t bad = 0;
    for (int64_t lane = 0; lane < kLanes; ++lane) {
        top = most[lane] > top ? most[lane] : top;
        bad |= nan[lane];
    }
    for (; at < n; ++at) {
        top = logits[at] > top ? logits[at] : top;
        bad |= logits[at] != logits[at];
    }
    if (bad || !(std::fabs(top) < kInfinity)) throw NoToken();
    return std::find(logits, logits + n, top) - logits;
}

// Sets `recent_` to the recent tokens in ascending order. Returns whether any option changes logits.
bool Sampler::remember(Text text, const Tokens& path) {
    const SamplingOptions& options = options_;
    recent_.clear();
    if (options.repeat_penalty == 1 && options.presence_penalty == 0 && options.frequency_penalty == 0) return options.biases > 0;
    const int64_t total = text.length + static_cast<int64_t>(path.size());
    const int64_t begin = options.repeat_last_n < 0 ? 0 : std::max<int64_t>(0, total - options.repeat_last_n);
    recent_.assign(text.ids + std::min(begin, text.length), text.ids + text.length);
    recent_.insert(recent_.end(), path.begin() + std::max<int64_t>(0, begin - text.length), path.end());
    std::sort(recent_.begin(), recent_.end());
    return true;
}

// Returns the logit of a token after bias and penalties.
float Sampler::changed(float before, int32_t id) const {
    const SamplingOptions& options = options_;
    auto score = static_cast<double>(before);
    for (int64_t at = 0; at < options.biases; ++at)
        if (options.bias_ids[at] == id) score += options.bias_values[at];
    const auto times = std::equal_range(recent_.begin(), recent_.end(), id);
    if (times.first != times.second) {
        const auto count = static_cast<double>(times.second - times.first);
        score = score <= 0 ? score * options.repeat_penalty : score / options.repeat_penalty;
        score -= count * options.frequency_penalty + options.presence_penalty;
    }
    constexpr auto kLimit = static_cast<double>(std::numeric_limits<float>::max());
    const bool infinite = std::isinf(before) || score == -std::numeric_limits<double>::infinity();
    if (!infinite) score = std::min(std::max(score, -kLimit), kLimit);
    return static_cast<float>(score);
}

// Changes logits by bias and penalties, remembers the old ones in `changed_`, and returns the number of changed logits.
int64_t Sampler::penalize(float* logits, int64_t size, Text text, const Tokens& path) {
    changed_.clear();
    if (!remember(text, path)) return 0;
    ids_ = recent_;
    ids_.insert(ids_.end(), options_.bias_ids, options_.bias_ids + options_.biases);
    std::sort(ids_.begin(), ids_.end());
    ids_.erase(std::unique(ids_.begin(), ids_.end()), ids_.end());
    for (const int32_t id : ids_) {
        if (id < 0 || id >= size) continue;
        changed_.emplace_back(id, logits[id]);
        logits[id] = changed(logits[id], id);
    }
    return static_cast<int64_t>(changed_.size());
}

void Sampler::restore(float* logits) {
    for (const auto& [id, before] : changed_) logits[id] = before;
}

// Returns the likeliest token after bias and penalties, which stay in `logits` until `restore`.
int64_t Sampler::scores(const LogitRow& row, int64_t size, Text text, const Tokens& path) {
    int64_t best = largest(row, size);
    if (penalize(row.logits, size, text, path)) {
        try {
            best = largest(row, size);
        } catch (const NoToken&) {
            restore(row.logits);
            throw;
        }
    }
    return best;
}

// Sets `ids_` to the ids of the `top_k` largest logits in ascending order; of equal logits, the lower ids.
void Sampler::keep_top(const LogitRow& row, int64_t size) {
    std::vector<std::pair<float, int32_t>> best;  // a heap with the worst in front
    best.reserve(static_cast<size_t>(options_.top_k));
    each_id(row, size, [&](int32_t id) {
        const float logit = row.logits[id];
        if (static_cast<int64_t>(best.size()) < options_.top_k) {
            best.emplace_back(logit, id);
            std::push_heap(best.begin(), best.end(), likelier);
        } else if (logit > best.front().first) {
            std::pop_heap(best.begin(), best.end(), likelier);
            best.back() = {logit, id};
            std::push_heap(best.begin(), best.end(), likelier);
        }
    });
    ids_.clear();
    for (const auto& one : best) ids_.push_back(one.second);
    std::sort(ids_.begin(), ids_.end());
}

// Sets `ids_` to those that top-k, top-p and min-p keep, in the order of `_kept` of sampling.py.
void Sampler::keep(const LogitRow& row, int64_t size) {
    const SamplingOptions& options = options_;
    const float* logits = row.logits;
    if (0 < options.top_k && options.top_k < size) {
        keep_top(row, size);
    } else {
        ids_.clear();
        ids_.reserve(static_cast<size_t>(row.ids ? row.found : size));
        each_id(row, size, [&](int32_t id) { ids_.push_back(id); });
    }
    if (options.top_p == 1 && options.min_p == 0) return;
    double top = static_cast<double>(logits[ids_[0]]), total = 0.0;
    for (const int32_t id : ids_) top = std::max(top, static_cast<double>(logits[id]));
    weights_.clear();
    size_t count = 0;
    for (const int32_t id : ids_) {
        const double weight = portable_exp(static_cast<double>(logits[id]) - top);
        total += weight;
        if (weight >= options.min_p) {
            ids_[count++] = id;
            weights_.push_back(weight);
        }
    }
    ids_.resize(count);
    if (options.top_p == 1) return;
    std::vector<std::pair<float, int32_t>> order;
    order.reserve(count);
    for (size_t at = 0; at < count; ++at) order.emplace_back(logits[ids_[at]], static_cast<int32_t>(at));
    std::sort(order.begin(), order.end(), likelier);
    Tokens kept;
    double sum = 0.0;
    for (const auto& one : order) {
        const auto at = static_cast<size_t>(one.second);
        sum += weights_[at];
        kept.push_back(ids_[at]);
        if (sum >= options.top_p * total) break;
    }
    ids_ = std::move(kept);
}

// Sets `probable_` to the kept tokens of positive probability in ascending order of id.
void Sampler::weigh(const float* logits) {
    double top = static_cast<double>(logits[ids_[0]]), total = 0.0;
    for (const int32_t id : ids_) top = std::max(top, static_cast<double>(logits[id]));
    weights_.clear();
    for (const int32_t id : ids_) {
        weights_.push_back(portable_exp((static_cast<double>(logits[id]) - top) / options_.temperature));
        total += weights_.back();
    }
    probable_.clear();
    for (size_t at = 0; at < ids_.size(); ++at) {
        const auto prob = static_cast<float>(weights_[at] / total);
        if (prob != 0) probable_.push_back({ids_[at], prob});
    }
    std::sort(probable_.begin(), probable_.end(), [](const Probable& a, const Probable& b) { return a.id < b.id; });
}

int32_t Sampler::token(const LogitRow& row, Text text, const Tokens& path, int64_t position) {
    const int64_t size = std::min(options_.vocab_limit, row.vocab), best = scores(row, size, text, path);
    if (options_.temperature == 0) {
        restore(row.logits);
        return static_cast<int32_t>(best);
    }
    keep(row, size);
    weigh(row.logits);
    restore(row.logits);
    if (probable_.size() == 1) return probable_[0].id;
    const uint64_t key = key_of(options_.seed, options_.sample, static_cast<uint64_t>(position));
    int32_t token = probable_[0].id;
    double shortest = std::numeric_limits<double>::infinity();
    for (const Probable& one : probable_) {
        const double wait = -portable_log(uniform(key, one.id)) / static_cast<double>(one.prob);
        if (wait < shortest) {
            shortest = wait;
            token = one.id;
        }
    }
    return token;
}

void Sampler::distribution(const LogitRow& row, Text text, const Tokens& path, float* probs) {
    const int64_t size = std::min(options_.vocab_limit, row.vocab), best = scores(row, size, text, path);
    std::fill_n(probs, row.vocab, 0.0f);
    if (options_.temperature == 0) {
        probs[best] = 1.0f;
    } else {
        keep(row, size);
        weigh(row.logits);
        for (const Probable& one : probable_) probs[one.id] = one.prob;
    }
    restore(row.logits);
}

void Sampler::sparse(Guesses& guesses, Text text, const Tokens& path) {
    Tokens tokens;
    std::vector<float> scores;
    const bool changes = remember(text, path);
    for (const Guess& one : guesses) {
        if (!(one.prob > 0)) continue;
        const float score = changes ? changed(std::log(one.prob), one.id) : std::log(one.prob);
        if (std::isinf(score)) continue;  // a bias forbids it
        tokens.push_back(one.id);
        scores.push_back(score);
    }
    guesses.clear();
    if (tokens.empty()) return;
    if (options_.temperature == 0) {
        guesses.push_back({tokens[static_cast<size_t>(std::max_element(scores.begin(), scores.end()) - scores.begin())], 1.0f});
        return;
    }
    const auto count = static_cast<int64_t>(scores.size());
    keep({scores.data(), count}, count);
    weigh(scores.data());
    for (const Probable& one : probable_) guesses.push_back({tokens[static_cast<size_t>(one.id)], one.prob});
}

void Sampler::couple(Guesses& guesses, int64_t position) const {
    constexpr double kShared = 0.3;
    const uint64_t key = key_of(options_.seed, options_.sample, static_cast<uint64_t>(position));
    double before = 0.0, after = 0.0;
    std::vector<double> weights;
    for (const Guess& one : guesses) {
        before += static_cast<double>(one.prob);
        weights.push_back(static_cast<double>(one.prob) * std::pow(-portable_log(uniform(key, one.id)), -kShared));
        after += weights.back();
    }
    for (size_t at = 0; at < guesses.size(); ++at) guesses[at].prob = static_cast<float>(weights[at] * (before / after));
}

void Sampler::likeliest(const LogitRow& row, TopTokens& top) const {
    constexpr float kFar = 9.0f;
    std::vector<std::pair<float, int32_t>> best;
    const int64_t size = std::min(options_.vocab_limit, row.vocab);
    const bool certain = options_.temperature == 0;
    float highest = 0.0f;
    if (certain) {
        highest = row.logits[largest(row, size)];
        const float bound = highest - kFar;
        each_id(row, size, [&](int32_t id) {
            if (row.logits[id] > bound) best.emplace_back(row.logits[id], id);
        });
    } else {
        for (const Probable& one : probable_) best.emplace_back(one.prob, one.id);
    }
    const size_t count = std::min<size_t>(best.size(), kTop);
    std::partial_sort(best.begin(), best.begin() + static_cast<std::ptrdiff_t>(count), best.end(), likelier);
    top.clear();
    double weights[kTop], total = 0.0;
    for (size_t at = 0; at < count && certain; ++at) {
        weights[at] = portable_exp(static_cast<double>(best[at].first - highest));
        total += weights[at];
    }
    for (size_t at = 0; at < count; ++at)
        top.push_back({best[at].second, certain ? static_cast<float>(weights[at] / total) : best[at].first});
}

}  // namespace edgedec
