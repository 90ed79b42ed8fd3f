// The loops of attention.hpp over the vectors of a path. Each path's file includes this once and compiles it with its own
// instructions; as in ternary_tile.hpp everything is local, and nothing of the standard library is used.
//
// Lanes provides: kWidth floats in a Type (kWidth divides 16), kSums (accumulators that fit the registers), kRowsAtOnce (at
// most kRows), load and, for a single number, one, from float*, uint16_t* (float16) and int8_t*, store, store_half,
// broadcast, fma (one rounding), mul, div, add, sub, min and max (the second operand if either is NaN), and
// times_power(y, z) = y * 2^n, where z = n + kMagic.
#pragma once

#include "attention.hpp"

namespace edgedec {
namespace {

constexpr float kMagic = 12582912.0f;   // 1.5 * 2^23: adding it rounds to an integer, which is then in the low bits
constexpr float kMostHalf = 65504.0f;   // largest float16
constexpr int64_t kValueTile = 128;     // slots whose values stay in the L1 cache while all dimensions are summed

// Computes e^x = 2^n * (1 + r + y * r^2) and returns n + kMagic. |x| must be at most 87.
// Source: the polynomial of Cephes' expf; n = round(x / ln 2) by addition of kMagic, derived here.
template <class Lanes>
EDGEDEC_INLINE typename Lanes::Type parts_of_exp(typename Lanes::Type x, typename Lanes::Type& r, typename Lanes::Type& y) {
    const auto z = Lanes::fma(x, Lanes::broadcast(1.44269504088896341f), Lanes::broadcast(kMagic));
    const auto n = Lanes::sub(z, Lanes::broadcast(kMagic));
    r = Lanes::fma(n, Lanes::broadcast(-0.693359375f), x);
    r = Lanes::fma(n, Lanes::broadcast(2.12194440e-4f), r);
    y = Lanes::broadcast(1.9875691500e-4f);
    y = Lanes::fma(y, r, Lanes::broadcast(1.3981999507e-3f));
    y = Lanes::fma(y, r, Lanes::broadcast(8.3334519073e-3f));
    y = Lanes::fma(y, r, Lanes::broadcast(4.1665795894e-2f));
    y = Lanes::fma(y, r, Lanes::broadcast(1.6666665459e-1f));
    y = Lanes::fma(y, r, Lanes::broadcast(5.0000001201e-1f));
    return z;
}

// Returns exp(x) for x <= 0; below -87 the result is exp(-87). Relative error 1e-7. -inf and NaN give NaN.
template <class Lanes>
EDGEDEC_INLINE typename Lanes::Type exp_of(typename Lanes::Type x) {
    typename Lanes::Type r, y;
    const auto z = parts_of_exp<Lanes>(Lanes::max(Lanes::broadcast(-87.0f), x), r, y);
    y = Lanes::fma(y, Lanes::mul(r, r), Lanes::add(r, Lanes::broadcast(1.0f)));
    // x - x is 0 or NaN. It restores a NaN that times_power may have turned into a number.
    return Lanes::add(Lanes::times_power(y, z), Lanes::sub(x, x));
}

// Returns cap * tanh(x / cap), where `twice` is 2 / cap. Relative error 3e-7; NaN stays NaN.
// tanh(u) = e / (e + 2) with e = exp(2 u) - 1, summed so that small values keep their digits; beyond 9, tanh is 1 in float32.
template <class Lanes>
EDGEDEC_INLINE typename Lanes::Type cap_of(typename Lanes::Type x, float cap, float twice) {
    auto u = Lanes::mul(x, Lanes::broadcast(twice));
    u = Lanes::max(Lanes::broadcast(-18.0f), Lanes::min(Lanes::broadcast(18.0f), u));
    typename Lanes::Type r, y;
    const auto z = parts_of_exp<Lanes>(u, r, y);
    const auto power = Lanes::times_power(Lanes::broadcast(1.0f), z);
    const auto e = Lanes::fma(power, Lanes::fma(y, Lanes::mul(r, r), r), Lanes::sub(power, Lanes::broadcast(1.0f)));
    return Lanes::mul(Lanes::broadcast(cap), Lanes::div(e, Lanes::add(e, Lanes::broadcast(2.0f))));
}

// Applies the rotary embedding. Each product and each sum is rounded, as in NumPy.
inline void rotate(const float* x, int64_t size, const Rotary& rotary, int64_t position, float* out) {
    const int64_t half = size / 2, next = rotary.pairs == 1 ? half : 1, step = rotary.pairs == 1 ? 1 : 2;
    if (!rotary.pairs) {
        for (int64_t i = 0; i < size; ++i) out[i] = x[i];
        return;
    }
    const float *cos = rotary.cos + position * half, *sin = rotary.sin + position * half;
    for (int64_t i = 0; i < half; ++i) {
        const float a = x[i * step], b = x[i * step + next];
        out[i * step] = a * cos[i] - b * sin[i];
        out[i * step + next] = b * cos[i] + a * sin[i];
    }
}

template <class Lanes>
void to_half(const float* x, int64_t size, uint16_t* out) {
    for (int64_t i = 0; i < size; i += Lanes::kWidth) {  // both arrays have room for a whole last vector
        const auto below = Lanes::min(Lanes::broadcast(kMostHalf), Lanes::load(x + i));
        Lanes::store_half(out + i, Lanes::max(Lanes::broadcast(-kMostHalf), below));
    }
}

template <class T>
void store_row(T* keys, T* values, const T* key, const T* value, int64_t size, int64_t slot) {
    T* column = keys + slot / kKeyBlock * kKeyBlock * size + slot % kKeyBlock;
    for (int64_t d = 0; d < size; ++d) column[d * kKeyBlock] = key[d];
    __builtin_memcpy(values + slot * size, value, static_cast<size_t>(size) * sizeof(T));
}

template <class Lanes>
void append_rows(const AttentionRows& rows) {
    const KvLayout& at = rows.layout;
    const int64_t size = at.head_dim, width = at.kv_heads * size;
    float key[kMostHeadDim + 16] = {};
    float value[kMostHeadDim + 16] = {};
    uint16_t half_key[kMostHeadDim + 16], half_value[kMostHeadDim + 16];
    int8_t key_codes[kMostHeadDim + 16], value_codes[kMostHeadDim + 16];
    for (int64_t token = 0; token < rows.tokens; ++token)
        for (int64_t head = 0; head < at.kv_heads; ++head) {
            const int64_t slot = rows.start + token;
            uint8_t *keys = rows.cache + at.keys(head), *values = rows.cache + at.values(head);
            const float* source = rows.values + token * width + head * size;
            rotate(rows.keys + token * width + head * size, size, rows.rotary, rows.positions[token], key);
            if (at.bits == 32) {
                store_row(reinterpret_cast<float*>(keys), reinterpret_cast<float*>(values), key, source, size, slot);
            } else if (at.bits == 16) {
                __builtin_memcpy(value, source, static_cast<size_t>(size) * sizeof(float));
                to_half<Lanes>(key, size, half_key);
                to_half<Lanes>(value, size, half_value);
                store_row(reinterpret_cast<uint16_t*>(keys), reinterpret_cast<uint16_t*>(values), half_key, half_value,
                          size, slot);
            } else {
                const int64_t whole = (size + 15) / 16 * 16;
                rows.quantize(key, size, key_codes, whole,
                              reinterpret_cast<float*>(rows.cache + at.key_scales(head)) + slot);
                rows.quantize(source, size, value_codes, whole,
                              reinterpret_cast<float*>(rows.cache + at.value_scales(head)) + slot);
                store_row(reinterpret_cast<int8_t*>(keys), reinterpret_cast<int8_t*>(values), key_codes, value_codes,
                          size, slot);
            }
        }
}

// R query rows over one head's cache of elements T.
template <class Lanes, class T, int R>
class Rows {
    using Type = typename Lanes::Type;
    static constexpr int64_t kWidth = Lanes::kWidth;
    static constexpr bool kScaled = sizeof(T) == 1;

  public:
    Rows(const AttentionBlock& block, int64_t first) : b_(block), size_(block.layout.head_dim), stride_(block.stride()) {
        keys_ = reinterpret_cast<const T*>(b_.cache + b_.layout.keys(b_.head));
        values_ = reinterpret_cast<const T*>(b_.cache + b_.layout.values(b_.head));
        key_scales_ = reinterpret_cast<const float*>(b_.cache + b_.layout.key_scales(b_.head));
        value_scales_ = reinterpret_cast<const float*>(b_.cache + b_.layout.value_scales(b_.head));
        queries_ = b_.scratch;
        sums_ = queries_ + R * size_;
        weights_ = sums_ + R * size_;
        scaled_ = kScaled ? weights_ + R * stride_ : weights_;
        const int64_t width = b_.layout.kv_heads * b_.group * size_;
        for (int r = 0; r < R; ++r) {
            const int64_t row = first + r;
            tokens_[r] = row / b_.group;
            places_[r] = tokens_[r] * width + (b_.head * b_.group + row % b_.group) * size_;
            rotate(b_.queries + places_[r], size_, b_.rotary, b_.positions[tokens_[r]], queries_ + r * size_);
        }
    }

    void run() {
        // A row sees the committed slots [0, sinks) and [from, past); without a window, the latter are all.
        const int64_t sinks = !b_.window ? 0 : b_.sinks < b_.past ? b_.sinks : b_.past;
        int64_t from[R], last = 0, least = b_.past;
        for (int r = 0; r < R; ++r) {
            from[r] = b_.window ? b_.positions[tokens_[r]] - b_.window + 1 : 0;
            from[r] = from[r] < sinks ? sinks : from[r] > b_.past ? b_.past : from[r];
            last = from[r] > last ? from[r] : last;
            least = from[r] < least ? from[r] : least;
        }
        score(0, sinks);
        score(least, b_.past + b_.tokens);
        for (int r = 0; r < R; ++r) {
            float top = -__builtin_inff();
            largest(r, 0, sinks, top);
            largest(r, from[r], b_.past, top);
            each_run(r, [&](int64_t start, int64_t stop) { largest(r, start, stop, top); });
            weigh(r, 0, sinks, top);
            const int64_t weighed = (sinks + kWidth - 1) / kWidth * kWidth;
            weigh(r, least > weighed ? least : weighed, b_.past + b_.tokens, top);
        }
        for (int64_t i = 0; i < R * size_; ++i) sums_[i] = 0.0f;
        add<R>(0, 0, sinks);
        for (int r = 0; r < R; ++r) add<1>(r, from[r], last);
        add<R>(0, last, b_.past);
        for (int r = 0; r < R; ++r) {
            each_run(r, [&](int64_t start, int64_t stop) { add<1>(r, start, stop); });
            for (int64_t d = 0; d < size_; ++d) b_.out[places_[r] + d] = sums_[r * size_ + d] / totals_[r];
        }
    }

  private:
    // Computes the scores of slots [start, stop), and of some around them.
    void score(int64_t start, int64_t stop) {
        constexpr int kFit = R >= Lanes::kSums ? 1 : Lanes::kSums / R;
        constexpr int kStrips = kFit < 8 ? kFit : 8;  // a processor does not prefetch more streams
        int64_t slot = start / kWidth * kWidth;
        for (; slot + kStrips * kWidth <= stop; slot += kStrips * kWidth) score_strips<kStrips>(slot);
        for (; slot < stop; slot += kWidth) score_strips<1>(slot);
        if (b_.cap <= 0) return;
        const float twice = 2.0f / b_.cap;
        for (int r = 0; r < R; ++r)
            for (float *at = weights_ + r * stride_ + start / kWidth * kWidth, *end = weights_ + r * stride_ + slot; at < end;
                 at += kWidth)
                Lanes::store(at, cap_of<Lanes>(Lanes::load(at), b_.cap, twice));
    }

    template <int S>
    void score_strips(int64_t slot) {
        const T* at[S];
        for (int s = 0; s < S; ++s) {
            const int64_t here = slot + s * kWidth;
            at[s] = keys_ + here / kKeyBlock * kKeyBlock * size_ + here % kKeyBlock;
        }
        Type sums[R][S];
        for (int r = 0; r < R; ++r)
            for (int s = 0; s < S; ++s) sums[r][s] = Lanes::broadcast(0.0f);
        for (int64_t d = 0; d < size_; ++d) {
            Type keys[S];
            for (int s = 0; s < S; ++s) keys[s] = Lanes::load(at[s] + d * kKeyBlock);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                const Type query = Lanes::broadcast(queries_[r * size_ + d]);
                for (int s = 0; s < S; ++s) sums[r][s] = Lanes::fma(query, keys[s], sums[r][s]);
            }
        }
        for (int s = 0; s < S; ++s)
            for (int r = 0; r < R; ++r) {
                Type sum = sums[r][s];
                if (kScaled) sum = Lanes::mul(sum, Lanes::load(key_scales_ + slot + s * kWidth));
                Lanes::store(weights_ + r * stride_ + slot + s * kWidth, Lanes::mul(sum, Lanes::broadcast(b_.scale)));
            }
    }

    // Raises `top` to the largest of a row's scores [start, stop). NaN is ignored here; exp_of passes it on.
    void largest(int r, int64_t start, int64_t stop, float& top) const {
        const float* scores = weights_ + r * stride_;
        Type most = Lanes::broadcast(top);
        for (; start + kWidth <= stop; start += kWidth) most = Lanes::max(Lanes::load(scores + start), most);
        float lanes[kWidth];
        Lanes::store(lanes, most);
        for (int64_t i = 0; i < kWidth; ++i) top = lanes[i] > top ? lanes[i] : top;
        for (; start < stop; ++start) top = scores[start] > top ? scores[start] : top;
    }

    // Turns the scores of slots [start, stop), and of some around them, into weights. It must run once for each slot.
    void weigh(int r, int64_t start, int64_t stop, float top) {
        float *weights = weights_ + r * stride_, *scaled = scaled_ + r * stride_;
        const Type most = Lanes::broadcast(top);
        for (int64_t slot = start / kWidth * kWidth; slot < stop; slot += kWidth) {
            const Type weight = exp_of<Lanes>(Lanes::sub(Lanes::load(weights + slot), most));
            Lanes::store(weights + slot, weight);
            if (kScaled) Lanes::store(scaled + slot, Lanes::mul(weight, Lanes::load(value_scales_ + slot)));
        }
    }

    // Calls `body` for each run of slots of this pass that a row sees, in order.
    template <class Body>
    void each_run(int r, Body body) const {
        const int64_t token = tokens_[r], position = b_.positions[token];
        const uint64_t* bits = b_.visible + token * b_.words;
        int64_t start = -1;
        for (int64_t j = 0; j <= b_.tokens; ++j) {
            bool seen = j < b_.tokens && (bits[j / 64] >> (j % 64) & 1);
            if (seen && b_.window)
                seen = b_.positions[j] > position - b_.window || b_.positions[j] < b_.sinks;
            if (seen && start < 0) start = j;
            if (!seen && start >= 0) {
                body(b_.past + start, b_.past + j);
                start = -1;
            }
        }
    }

    // Adds the weighted values of slots [start, stop) to the sums of rows [first, first + N).
    template <int N>
    void add(int first, int64_t start, int64_t stop) {
        constexpr int kMost = N >= Lanes::kSums ? 1 : Lanes::kSums / N;
        for (int64_t tile = start; tile < stop; tile += kValueTile) {
            const int64_t end = tile + kValueTile < stop ? tile + kValueTile : stop;
            float totals[N];
            for (int n = 0; n < N; ++n) totals[n] = totals_[first + n];
            for (int64_t slot = tile; slot < end; ++slot)
                for (int n = 0; n < N; ++n) totals[n] += weights_[(first + n) * stride_ + slot];
            for (int n = 0; n < N; ++n) totals_[first + n] = totals[n];
            int64_t d = 0;
            for (; d + kMost * kWidth <= size_; d += kMost * kWidth) add_chunk<N, kMost>(first, tile, end, d);
            if constexpr (kMost > 2)
                for (; d + kMost / 2 * kWidth <= size_; d += kMost / 2 * kWidth)
                    add_chunk<N, kMost / 2>(first, tile, end, d);
            for (; d + kWidth <= size_; d += kWidth) add_chunk<N, 1>(first, tile, end, d);
            for (; d < size_; ++d)
                for (int64_t slot = tile; slot < end; ++slot)
                    for (int n = 0; n < N; ++n) {
                        float& sum = sums_[(first + n) * size_ + d];
                        sum = __builtin_fmaf(scaled_[(first + n) * stride_ + slot],
                                             Lanes::one(values_ + slot * size_ + d), sum);
                    }
        }
    }

    template <int N, int C>
    void add_chunk(int first, int64_t start, int64_t stop, int64_t d) {
        Type sums[N][C];
        for (int n = 0; n < N; ++n)
            for (int c = 0; c < C; ++c) sums[n][c] = Lanes::load(sums_ + (first + n) * size_ + d + c * kWidth);
        const T* values = values_ + start * size_ + d;
        for (int64_t slot = start; slot < stop; ++slot, values += size_) {
            Type here[C];
            for (int c = 0; c < C; ++c) here[c] = Lanes::load(values + c * kWidth);
#pragma GCC unroll 8
            for (int n = 0; n < N; ++n) {
                const Type weight = Lanes::broadcast(scaled_[(first + n) * stride_ + slot]);
                for (int c = 0; c < C; ++c) sums[n][c] = Lanes::fma(weight, here[c], sums[n][c]);
            }
        }
        for (int n = 0; n < N; ++n)
            for (int c = 0; c < C; ++c) Lanes::store(sums_ + (first + n) * size_ + d + c * kWidth, sums[n][c]);
    }

    const AttentionBlock& b_;
    const int64_t size_, stride_;
    const T *keys_, *values_;
    const float *key_scales_, *value_scales_;
    float *queries_, *sums_, *weights_, *scaled_;
    int64_t tokens_[R], places_[R];
    float totals_[R] = {};
};

// Computes `left` rows, R at a time, and the last ones together.
template <class Lanes, class T, int R = Lanes::kRowsAtOnce>
void attend_rows(const AttentionBlock& block, int64_t first, int64_t left) {
    for (; left >= R; first += R, left -= R) Rows<Lanes, T, R>(block, first).run();
    if constexpr (R > 1)
        if (left) attend_rows<Lanes, T, R - 1>(block, first, left);
}

}  // namespace
}  // namespace edgedec

// Defines the functions of a path for the table in dispatch.cpp.
#define EDGEDEC_DEFINE_ATTENTION(name, Lanes)                                                   \
    namespace edgedec {                                                                         \
    void attend_##name(const AttentionBlock& block) {                                           \
        const int64_t first = block.first, count = block.count;                                 \
        if (block.layout.bits == 32) return attend_rows<Lanes, float>(block, first, count);     \
        if (block.layout.bits == 16) return attend_rows<Lanes, uint16_t>(block, first, count);  \
        attend_rows<Lanes, int8_t>(block, first, count);                                        \
    }                                                                                           \
    void append_##name(const AttentionRows& rows) { append_rows<Lanes>(rows); }                 \
    }  // namespace edgedec
