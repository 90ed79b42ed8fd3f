// The loops of attention.hpp over the vectors of a path. Each path's file includes this once and compiles it with its own
// instructions; as in ternary_tile.hpp everything is local, and nothing of the standard library is used.
//
// Lanes provides: kWidth floats in a Type (kWidth divides 16), kSums (accumulators that fit the registers), kRowsAtOnce (at
// most kRows), load and, for a single number, one, from float*, uint16_t* (float16) and int8_t*, store, store_half,
// broadcast, fma (one rounding), mul, div, add, sub, min and max (the second operand if either is NaN), and
// times_power(y, z) = y * 2^n, where z = n + kMagic.
#pragma once

#include "attention/attention.hpp"

namespace edgedec {
namespace {

constexpr float kMagic = 12582912.0f;   // 1.5 * 2^23: adding it rounds to an integer, which is then in the low bits
constexpr float kMostHalf = 65504.0f;   // largest float16
constexpr int64_t kValueTile = 128;     // slots whose values stay in the L1 cache while all dimensions are summed
constexpr float kMostNibble = 7.0f;     // largest code of 4 bits
constexpr int kNibbleBias = 8;          // number that is added to a code when it is stored

// Two codes of 4 bits.
struct Nibbles {
    uint8_t both;
};

// A place among codes of 4 bits, as a pointer is one among numbers.
struct NibblePlace {
    const uint8_t* bytes;
    int64_t at;

    EDGEDEC_INLINE NibblePlace operator+(int64_t count) const { return {bytes, at + count}; }
    EDGEDEC_INLINE NibblePlace& operator+=(int64_t count) { return at += count, *this; }
    EDGEDEC_INLINE const uint8_t* byte() const { return bytes + nibble_byte(at); }
    EDGEDEC_INLINE float code() const { return static_cast<float>((*byte() >> nibble_shift(at) & 15) - kNibbleBias); }
    // The 8 bytes of the 16 codes among which this one is.
    EDGEDEC_INLINE int64_t group() const {
        int64_t both;
        __builtin_memcpy(&both, bytes + (at >> 4 << 3), sizeof both);
        return both;
    }
};

// The places of elements T in the cache.
template <class T>
struct Places {
    using Type = const T*;
    EDGEDEC_INLINE static Type first(const uint8_t* bytes) { return reinterpret_cast<const T*>(bytes); }
    EDGEDEC_INLINE static const void* address(Type place) { return place; }
};

template <>
struct Places<Nibbles> {
    using Type = NibblePlace;
    EDGEDEC_INLINE static Type first(const uint8_t* bytes) { return {bytes, 0}; }
    EDGEDEC_INLINE static const void* address(Type place) { return place.byte(); }
};

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
inline void rotate(const float* __restrict x, int64_t size, const Rotary& rotary, int64_t position, float* __restrict out) {
    const int64_t half = size / 2;
    if (!rotary.pairs) {
        for (int64_t i = 0; i < size; ++i) out[i] = x[i];
        return;
    }
    const float *__restrict cos = rotary.cos + position * half, *__restrict sin = rotary.sin + position * half;
    if (rotary.pairs == 1) {  // a loop of its own, which the compiler turns into vectors
        for (int64_t i = 0; i < half; ++i) {
            out[i] = x[i] * cos[i] - x[i + half] * sin[i];
            out[i + half] = x[i + half] * cos[i] + x[i] * sin[i];
        }
        return;
    }
    for (int64_t i = 0; i < half; ++i) {
        out[2 * i] = x[2 * i] * cos[i] - x[2 * i + 1] * sin[i];
        out[2 * i + 1] = x[2 * i + 1] * cos[i] + x[2 * i] * sin[i];
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
void store_row(T* keys, T* values, const T* key, const T* value, int64_t size, int64_t slot, bool by_rows) {
    const auto bytes = static_cast<size_t>(size) * sizeof(T);
    T* column = keys + slot / kKeyBlock * kKeyBlock * size + slot % kKeyBlock;
    if (by_rows) __builtin_memcpy(keys + slot * size, key, bytes);
    else
        for (int64_t d = 0; d < size; ++d) column[d * kKeyBlock] = key[d];
    __builtin_memcpy(values + slot * size, value, bytes);
}

// Rounds a row to codes of 4 bits, each in a byte of its own and plus kNibbleBias, and returns the scale absmax / 7. Both arrays
// have room for a whole last vector of 16, and `x` has zeros there.
template <class Lanes>
float to_nibbles(const float* x, int64_t size, uint8_t* codes) {
    using Type = typename Lanes::Type;
    constexpr int64_t kTogether = 16;
    Type most = Lanes::broadcast(0.0f);
    for (int64_t i = 0; i < size; i += Lanes::kWidth) {  // NaN counts as nothing
        const Type value = Lanes::load(x + i);
        most = Lanes::max(Lanes::max(value, Lanes::sub(Lanes::broadcast(0.0f), value)), most);
    }
    float parts[kTogether];
    Lanes::store(parts, most);
    for (int64_t j = 1; j < Lanes::kWidth; ++j) parts[0] = parts[j] > parts[0] ? parts[j] : parts[0];
    const float scale = parts[0] / kMostNibble;
    if (!(scale > 0.0f)) {
        __builtin_memset(codes, kNibbleBias, static_cast<size_t>((size + kTogether - 1) / kTogether * kTogether));
        return scale;
    }
    for (int64_t i = 0; i < size; i += kTogether) {
        for (int64_t j = 0; j < kTogether; j += Lanes::kWidth) {
            // A scale that is a subnormal number may give a quotient that is out of range, or NaN, which the minimum keeps.
            Type code = Lanes::div(Lanes::load(x + i + j), Lanes::broadcast(scale));
            code = Lanes::max(Lanes::broadcast(-kMostNibble), Lanes::min(Lanes::broadcast(kMostNibble), code));
            Lanes::store(parts + j, Lanes::add(code, Lanes::broadcast(kMagic)));  // half to even
        }
        uint32_t bits[kTogether];
        __builtin_memcpy(bits, parts, sizeof bits);
        for (int64_t j = 0; j < kTogether; ++j) {
            const uint32_t number = (bits[j] & 0x7FFFFFFF) > 0x7F800000 ? 0 : bits[j];  // NaN becomes 0
            codes[i + j] = static_cast<uint8_t>((number + kNibbleBias) & 15);
        }
    }
    return scale;
}

// Stores 16 codes of 4 bits at the beginning of a group.
inline void store_group(uint8_t* bytes, const uint8_t* codes) {
    for (int64_t i = 0; i < 4; ++i) {
        bytes[i] = static_cast<uint8_t>(codes[4 * i] | codes[4 * i + 2] << 4);
        bytes[4 + i] = static_cast<uint8_t>(codes[4 * i + 1] | codes[4 * i + 3] << 4);
    }
}

// Stores a row of keys and of values in codes of 4 bits; `row` is the number of elements of a stored row, a multiple of 16.
inline void store_nibbles(uint8_t* keys, uint8_t* values, const uint8_t* key, const uint8_t* value, int64_t size, int64_t row,
                          int64_t slot, bool by_rows) {
    uint8_t* block = keys + slot / kKeyBlock * kKeyBlock * row / 2;
    const int64_t column = slot % kKeyBlock;
    if (by_rows) {
        for (int64_t d = 0; d < size; d += 16) store_group(block + (column * row + d) / 2, key + d);
    } else {
        uint8_t* byte = block + nibble_byte(column);
        const int shift = nibble_shift(column);
        const auto others = static_cast<uint8_t>(0xF0 >> shift);
        for (int64_t d = 0; d < size; ++d, byte += kKeyBlock / 2) *byte = static_cast<uint8_t>((*byte & others) | key[d] << shift);
    }
    for (int64_t d = 0; d < size; d += 16) store_group(values + (slot * row + d) / 2, value + d);
}

template <class Lanes>
void append_rows(const AttentionRows& rows, int64_t head) {
    const KvLayout& at = rows.layout;
    const int64_t size = at.head_dim, width = at.kv_heads * size;
    uint8_t *const keys = rows.cache + at.keys(head), *const values = rows.cache + at.values(head);
    float key[kMostHeadDim + 16] = {};
    float value[kMostHeadDim + 16] = {};
    uint16_t half_key[kMostHeadDim + 16], half_value[kMostHeadDim + 16];
    int8_t key_codes[kMostHeadDim + 16], value_codes[kMostHeadDim + 16];
    uint8_t key_nibbles[kMostHeadDim + 16], value_nibbles[kMostHeadDim + 16];
    float *const key_scales = reinterpret_cast<float*>(rows.cache + at.key_scales(head));
    float *const value_scales = reinterpret_cast<float*>(rows.cache + at.value_scales(head));
    for (const Segment *segment = rows.segments, *last = segment + rows.segment_count; segment < last; ++segment)
        for (int64_t row = 0; row < segment->tokens; ++row) {
            const int64_t token = segment->first + row, slot = segment->slot(segment->past + row);
            const float* source = rows.values + token * width + head * size;
            rotate(rows.keys + token * width + head * size, size, rows.rotary, rows.positions[token], key);
            if (at.bits == 32) {
                store_row(reinterpret_cast<float*>(keys), reinterpret_cast<float*>(values), key, source, size, slot,
                          at.by_rows());
            } else if (at.bits == 16) {
                __builtin_memcpy(value, source, static_cast<size_t>(size) * sizeof(float));
                to_half<Lanes>(key, size, half_key);
                to_half<Lanes>(value, size, half_value);
                store_row(reinterpret_cast<uint16_t*>(keys), reinterpret_cast<uint16_t*>(values), half_key, half_value, size,
                          slot, at.by_rows());
            } else if (at.bits == 4) {
                __builtin_memcpy(value, source, static_cast<size_t>(size) * sizeof(float));
                key_scales[slot] = to_nibbles<Lanes>(key, size, key_nibbles);
                value_scales[slot] = to_nibbles<Lanes>(value, size, value_nibbles);
                store_nibbles(keys, values, key_nibbles, value_nibbles, size, at.row(), slot, at.by_rows());
            } else {
                const int64_t whole = (size + 15) / 16 * 16;
                rows.quantize(key, size, key_codes, whole, key_scales + slot);
                rows.quantize(source, size, value_codes, whole, value_scales + slot);
                store_row(reinterpret_cast<int8_t*>(keys), reinterpret_cast<int8_t*>(values), key_codes, value_codes, size,
                          slot, at.by_rows());
            }
        }
}

// Writes the codes of 4 bits of `bytes` rows of 16 bytes, each with two channels, as rows of 16 codes of 8 bits.
inline void unpack_codes(const uint8_t* from, int64_t bytes, int8_t* to) {
    constexpr uint64_t kLow = 0x0F0F0F0F0F0F0F0F, kHigh = 0x8080808080808080, kBias = 0x0808080808080808;
    for (int64_t half = 0; half < 2 * bytes; ++half) {
        uint64_t both;
        __builtin_memcpy(&both, from + half * 8, 8);
        // With the highest bit of each byte set, no byte borrows from the next one.
        const uint64_t codes[2] = {(((both & kLow) | kHigh) - kBias) ^ kHigh, (((both >> 4 & kLow) | kHigh) - kBias) ^ kHigh};
        for (int64_t c = 0; c < 2; ++c)
            __builtin_memcpy(to + (half / 2 * 2 + c) * kKeyBlock + half % 2 * 8, codes + c, 8);
    }
}

// Computes the scores of labels: for each key, in the order of the channels, sums of rounded products of weights and codes.
template <class Lanes>
void score_blocks(const LabelBlocks& all) {
    using Type = typename Lanes::Type;
    constexpr int64_t kVectors = kKeyBlock / Lanes::kWidth;
    int8_t unpacked[kMostHeadDim * kKeyBlock];
    for (int64_t block = 0; block < all.count; ++block) {
        const uint8_t* bytes = all.labels + all.blocks[block] * kKeyBlock * all.label_bytes;
        const int8_t* codes = reinterpret_cast<const int8_t*>(bytes);
        if (all.bits == 4) {
            unpack_codes(bytes, (all.channels + 1) / 2, unpacked);
            codes = unpacked;
        }
        Type sums[kVectors];
        for (int64_t v = 0; v < kVectors; ++v) sums[v] = Lanes::broadcast(0.0f);
        for (int64_t c = 0; c < all.channels; ++c, codes += kKeyBlock) {
            const Type weight = Lanes::broadcast(all.weights[c]);
            for (int64_t v = 0; v < kVectors; ++v)
                sums[v] = Lanes::add(sums[v], Lanes::mul(weight, Lanes::load(codes + v * Lanes::kWidth)));
        }
        for (int64_t v = 0; v < kVectors; ++v) Lanes::store(all.scores + block * kKeyBlock + v * Lanes::kWidth, sums[v]);
    }
}

// Computes out [size] = sum over r, in order, of numbers[r] * directions[r][size].
template <class Lanes>
void combine_directions(const float* numbers, int64_t rank, const float* directions, int64_t size, float* out) {
    using Type = typename Lanes::Type;
    constexpr int kVectors = Lanes::kSums < 6 ? Lanes::kSums : 6;
    constexpr int64_t kWidth = Lanes::kWidth;
    int64_t d = 0;
    for (; d + kVectors * kWidth <= size; d += kVectors * kWidth) {
        Type sums[kVectors];
        for (int v = 0; v < kVectors; ++v) sums[v] = Lanes::broadcast(0.0f);
        for (int64_t r = 0; r < rank; ++r) {
            const Type number = Lanes::broadcast(numbers[r]);
            for (int v = 0; v < kVectors; ++v)
                sums[v] = Lanes::add(sums[v], Lanes::mul(number, Lanes::load(directions + r * size + d + v * kWidth)));
        }
        for (int v = 0; v < kVectors; ++v) Lanes::store(out + d + v * kWidth, sums[v]);
    }
    for (; d + kWidth <= size; d += kWidth) {
        Type sum = Lanes::broadcast(0.0f);
        for (int64_t r = 0; r < rank; ++r)
            sum = Lanes::add(sum, Lanes::mul(Lanes::broadcast(numbers[r]), Lanes::load(directions + r * size + d)));
        Lanes::store(out + d, sum);
    }
    for (; d < size; ++d) {
        float sum = 0.0f;
        for (int64_t r = 0; r < rank; ++r) sum = sum + numbers[r] * directions[r * size + d];
        out[d] = sum;
    }
}

// A number of rows as a type.
template <int N>
struct Count {
    static constexpr int kRows = N;
};

// Calls body(Count<n>{}), where n is 1 to Most.
template <int Most, class Body>
EDGEDEC_INLINE void with_count(int n, const Body& body) {
    if (n == Most) return body(Count<Most>{});
    if constexpr (Most > 1) with_count<Most - 1>(n, body);
}

// Up to Lanes::kRowsAtOnce query rows over one head's cache of elements T.
template <class Lanes, class T>
class Rows {
    using Type = typename Lanes::Type;
    using Place = typename Places<T>::Type;
    static constexpr int kMost = Lanes::kRowsAtOnce;
    static constexpr int64_t kWidth = Lanes::kWidth;
    static constexpr bool kScaled = sizeof(T) == 1;
    static constexpr bool kNibbles = __is_same(T, Nibbles);
    static constexpr int64_t kLine = (kNibbles ? 128 : 64) / sizeof(T);  // elements of a line of the processor's cache

  public:
    // `segment` is that of the first row. It becomes that of the last row.
    Rows(const AttentionBlock& block, int64_t first, int count, const Segment*& segment)
        : b_(*block.rows), head_(block.head), count_(count), size_(b_.layout.head_dim), row_(b_.layout.row()),
          stride_(block.stride) {
        keys_ = Places<T>::first(b_.cache + b_.layout.keys(head_));
        values_ = Places<T>::first(b_.cache + b_.layout.values(head_));
        key_scales_ = reinterpret_cast<const float*>(b_.cache + b_.layout.key_scales(head_));
        value_scales_ = reinterpret_cast<const float*>(b_.cache + b_.layout.value_scales(head_));
        queries_ = block.scratch;
        sums_ = queries_ + kMost * size_;
        weights_ = sums_ + kMost * size_;
        scaled_ = kScaled ? weights_ + kMost * stride_ : weights_;
        const int64_t width = b_.layout.kv_heads * b_.group * size_;
        for (int r = 0; r < count_; ++r) {
            const int64_t row = first + r, token = row / b_.group;
            while (token >= segment->first + segment->tokens) ++segment;
            tokens_[r] = token;
            segments_[r] = segment;
            places_[r] = token * width + (head_ * b_.group + row % b_.group) * size_;
            rotate(b_.queries + places_[r], size_, b_.rotary, b_.positions[token], queries_ + r * size_);
            // A row sees the committed slots [0, sinks) and [from, past); without a window, the latter are all.
            const int64_t past = segment->past;
            sinks_[r] = !b_.window ? 0 : b_.sinks < past ? b_.sinks : past;
            const int64_t from = b_.window ? b_.positions[token] - b_.window + 1 : 0;
            from_[r] = from < sinks_[r] ? sinks_[r] : from > past ? past : from;
        }
    }

    void run() {
        pieces(0, count_, 0, [&](int first, int n, int64_t start, int64_t stop) {
            with_count<kMost>(n, [&](auto rows) { score_piece<decltype(rows)::kRows>(first, start, stop); });
        });
        for (int r = 0; r < count_; ++r) {
            const Segment& segment = *segments_[r];
            float top = -__builtin_inff();
            largest(r, 0, sinks_[r], top);
            largest(r, from_[r], segment.past, top);
            each_run(r, [&](int64_t start, int64_t stop) { largest(r, start, stop, top); });
            weigh(r, 0, sinks_[r], top);
            const int64_t weighed = (sinks_[r] + kWidth - 1) / kWidth * kWidth;
            weigh(r, from_[r] > weighed ? from_[r] : weighed, segment.end(), top);
        }
        for (int64_t i = 0; i < count_ * size_; ++i) sums_[i] = 0.0f;
        pieces(0, count_, 0, [&](int first, int n, int64_t start, int64_t stop) {
            with_count<kMost>(n, [&](auto rows) { add_piece<decltype(rows)::kRows>(first, start, stop); });
        });
        for (int r = 0; r < count_; ++r) {
            each_run(r, [&](int64_t start, int64_t stop) { add<1>(r, start, stop); });
            for (int64_t d = 0; d < size_; ++d) b_.out[places_[r] + d] = sums_[r * size_ + d] / totals_[r];
        }
    }

  private:
    // Calls body(first, n, start, stop) for pieces of the slots, where rows [first, first + n) have the slots [start, stop)
    // in the same blocks. Together the pieces of a row are all of its slots from `start` on, in order.
    template <class Body>
    void pieces(int first, int n, int64_t start, const Body& body) const {
        int64_t stop = segments_[first]->end();
        for (int r = first + 1; r < first + n; ++r)
            if (segments_[r] != segments_[r - 1] && segments_[r]->shared < stop) stop = segments_[r]->shared;
        if (stop > start) body(first, n, start, stop);
        else stop = start;
        for (int r = first, next; r < first + n; r = next) {
            for (next = r + 1; next < first + n; ++next)
                if (segments_[next] != segments_[next - 1] && segments_[next]->shared <= stop) break;
            if (segments_[r]->end() > stop) pieces(r, next - r, stop, body);
        }
    }

    // Computes the scores of those of the slots [start, stop) that a row of [first, first + N) may see.
    template <int N>
    void score_piece(int first, int64_t start, int64_t stop) {
        int64_t sinks = 0, from = stop;
        for (int r = first; r < first + N; ++r) {
            sinks = sinks_[r] > sinks ? sinks_[r] : sinks;
            from = from_[r] < from ? from_[r] : from;
        }
        if (sinks > start) score<N>(first, start, sinks < stop ? sinks : stop);
        score<N>(first, from > start ? from : start, stop);
    }

    // Computes the scores of slots [start, stop), and of some around them.
    template <int N>
    void score(int first, int64_t start, int64_t stop) {
        constexpr int kFit = N >= Lanes::kSums ? 1 : Lanes::kSums / N;
        constexpr int kStrips = kFit < 8 ? kFit : 8;  // a processor does not prefetch more streams
        const int64_t begin = start / kWidth * kWidth, end = (stop + kWidth - 1) / kWidth * kWidth;
        score_vectors<N, kStrips>(first, begin, end);
        if (b_.cap <= 0) return;
        const float twice = 2.0f / b_.cap;
        for (int r = first; r < first + N; ++r)
            for (float *at = weights_ + r * stride_ + begin, *last = weights_ + r * stride_ + end; at < last; at += kWidth)
                Lanes::store(at, cap_of<Lanes>(Lanes::load(at), b_.cap, twice));
    }

    // Computes the scores of whole vectors of slots, S vectors at a time, and the last ones by fewer.
    template <int N, int S>
    void score_vectors(int first, int64_t slot, int64_t stop) {
        for (; slot + S * kWidth <= stop; slot += S * kWidth)
            score_strips<N, S>(first, slot, slot + 2 * S * kWidth <= stop ? slot + S * kWidth : slot);
        if constexpr (S > 1) score_vectors<N, S / 2>(first, slot, stop);
    }

    // Computes the scores of S vectors of slots from `slot` on, and prefetches the keys of those from `next` on.
    template <int N, int S>
    void score_strips(int first, int64_t slot, int64_t next) {
        Place at[S], ahead[S];
        int64_t place[S];  // slots of the cache
        for (int s = 0; s < S; ++s) {
            place[s] = segments_[first]->slot(slot + s * kWidth);
            at[s] = keys_ + (place[s] / kKeyBlock * kKeyBlock * row_ + place[s] % kKeyBlock);
            const int64_t later = segments_[first]->slot(next + s * kWidth);
            ahead[s] = keys_ + (later / kKeyBlock * kKeyBlock * row_ + later % kKeyBlock);
        }
        const float* queries = queries_ + first * size_;
        float* weights = weights_ + first * stride_ + slot;
        Type sums[N][S];
        for (int n = 0; n < N; ++n)
            for (int s = 0; s < S; ++s) sums[n][s] = Lanes::broadcast(0.0f);
        for (int64_t d = 0; d < size_; ++d) {
            Type keys[S];
            for (int s = 0; s < S; ++s) keys[s] = Lanes::load(at[s] + d * kKeyBlock);
            if (!(d & 1))
                for (int s = 0; s < S; ++s) __builtin_prefetch(Places<T>::address(ahead[s] + d * kKeyBlock));
#pragma GCC unroll 8
            for (int n = 0; n < N; ++n) {
                const Type query = Lanes::broadcast(queries[n * size_ + d]);
                for (int s = 0; s < S; ++s) sums[n][s] = Lanes::fma(query, keys[s], sums[n][s]);
            }
        }
        for (int s = 0; s < S; ++s)
            for (int n = 0; n < N; ++n) {
                Type sum = sums[n][s];
                if (kScaled) sum = Lanes::mul(sum, Lanes::load(key_scales_ + place[s]));
                Lanes::store(weights + n * stride_ + s * kWidth, Lanes::mul(sum, Lanes::broadcast(b_.scale)));
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
            if (kScaled)
                Lanes::store(scaled + slot, Lanes::mul(weight, Lanes::load(value_scales_ + segments_[r]->slot(slot))));
        }
    }

    // Calls `body` for each run of slots of this pass that a row sees, in order.
    template <class Body>
    void each_run(int r, Body body) const {
        const Segment& segment = *segments_[r];
        const int64_t position = b_.positions[tokens_[r]], *positions = b_.positions + segment.first;
        const uint64_t* bits = b_.visible + tokens_[r] * b_.words;
        int64_t start = -1;
        for (int64_t j = 0; j <= segment.tokens; ++j) {
            bool seen = j < segment.tokens && (bits[j / 64] >> (j % 64) & 1);
            if (seen && b_.window) seen = positions[j] > position - b_.window || positions[j] < b_.sinks;
            if (seen && start < 0) start = j;
            if (!seen && start >= 0) {
                body(segment.past + start, segment.past + j);
                start = -1;
            }
        }
    }

    // Adds the weighted values of the committed slots among [start, stop) to the sums of rows [first, first + N). The slots
    // of a pass are only in pieces whose rows are all of one segment.
    template <int N>
    void add_piece(int first, int64_t start, int64_t stop) {
        const int64_t past = segments_[first]->past, sinks = sinks_[first];
        const int64_t end = stop < past ? stop : past;
        int64_t last = start;
        for (int r = first; r < first + N; ++r) last = from_[r] > last ? from_[r] : last;
        add<N>(first, start, sinks < end ? sinks : end);
        for (int r = first; r < first + N; ++r)
            add<1>(r, from_[r] > start ? from_[r] : start, last < end ? last : end);
        add<N>(first, last, end);
    }

    // Adds the weighted values of slots [start, stop), if there are any, to the sums of rows [first, first + N).
    template <int N>
    void add(int first, int64_t start, int64_t stop) {
        constexpr int kChunk = N >= Lanes::kSums ? 1 : Lanes::kSums / N;
        for (int64_t tile = start; tile < stop; tile += kValueTile) {
            const int64_t end = tile + kValueTile < stop ? tile + kValueTile : stop;
            float totals[N];
            for (int n = 0; n < N; ++n) totals[n] = totals_[first + n];
            for (int64_t slot = tile; slot < end; ++slot)
                for (int n = 0; n < N; ++n) totals[n] += weights_[(first + n) * stride_ + slot];
            for (int n = 0; n < N; ++n) totals_[first + n] = totals[n];
            int64_t d = 0;
            add_chunks<N, kChunk>(first, tile, end, d);
            for (; d < size_; ++d)
                for (int64_t slot = tile; slot < end; ++slot) {
                    const float value = Lanes::one(values_ + (segments_[first]->slot(slot) * row_ + d));
                    for (int n = 0; n < N; ++n) {
                        float& sum = sums_[(first + n) * size_ + d];
                        sum = __builtin_fmaf(scaled_[(first + n) * stride_ + slot], value, sum);
                    }
                }
        }
    }

    // Adds the weighted values of slots [start, stop) in the whole vectors of dimensions from `d` on, C vectors at a time, and
    // the last ones by fewer. `d` becomes the dimension after them.
    template <int N, int C>
    void add_chunks(int first, int64_t start, int64_t stop, int64_t& d) {
        for (; d + C * kWidth <= size_; d += C * kWidth) add_chunk<N, C>(first, start, stop, d);
        if constexpr (C > 4 && C % 4 == 0)
            for (; d + C / 4 * 3 * kWidth <= size_; d += C / 4 * 3 * kWidth)
                add_chunk<N, C / 4 * 3>(first, start, stop, d);
        if constexpr (C > 1) add_chunks<N, C / 2>(first, start, stop, d);
    }

    // Returns the end of the slots from `slot` on, and before `stop`, that lie one after another in the cache.
    static int64_t run_end(const Segment& segment, int64_t slot, int64_t stop) {
        int64_t block = slot / kKeyBlock;
        for (const int64_t last = (stop - 1) / kKeyBlock; block < last; ++block)
            if (segment.blocks[block + 1] != segment.blocks[block] + 1) break;
        return (block + 1) * kKeyBlock < stop ? (block + 1) * kKeyBlock : stop;
    }

    template <int N, int C>
    void add_chunk(int first, int64_t start, int64_t stop, int64_t d) {
        Type sums[N][C];
        for (int n = 0; n < N; ++n)
            for (int c = 0; c < C; ++c) sums[n][c] = Lanes::load(sums_ + (first + n) * size_ + d + c * kWidth);
        const float* weights = scaled_ + first * stride_;
        const int64_t stride = stride_, row = row_;
        for (int64_t slot = start; slot < stop;) {
            const int64_t end = run_end(*segments_[first], slot, stop);
            Place values = values_ + (segments_[first]->slot(slot) * row + d);
            for (; slot < end; ++slot, values += row) {
                Type here[C];
                for (int c = 0; c < C; ++c) here[c] = Lanes::load(values + c * kWidth);
                // Processors do not prefetch across pages by themselves. An address outside the cache is ignored.
                for (int64_t c = 0; c < C * kWidth; c += kLine) __builtin_prefetch(Places<T>::address(values + (kKeyBlock * row + c)));
#pragma GCC unroll 8
                for (int n = 0; n < N; ++n) {
                    const Type weight = Lanes::broadcast(weights[n * stride + slot]);
                    for (int c = 0; c < C; ++c) sums[n][c] = Lanes::fma(weight, here[c], sums[n][c]);
                }
            }
        }
        for (int n = 0; n < N; ++n)
            for (int c = 0; c < C; ++c) Lanes::store(sums_ + (first + n) * size_ + d + c * kWidth, sums[n][c]);
    }

    const AttentionRows& b_;
    const int64_t head_;
    const int count_;
    const int64_t size_, row_, stride_;  // row_: elements of a stored row of values
    Place keys_, values_;
    const float *key_scales_, *value_scales_;
    float *queries_, *sums_, *weights_, *scaled_;
    const Segment* segments_[kMost];
    int64_t tokens_[kMost], places_[kMost], sinks_[kMost], from_[kMost];
    float totals_[kMost] = {};
};

// Computes the rows of a block, some at a time.
template <class Lanes, class T>
void attend_rows(const AttentionBlock& block) {
    const Segment* segment = block.rows->segments + block.segment;
    for (int64_t done = 0; done < block.count; done += Lanes::kRowsAtOnce) {
        const int64_t left = block.count - done;
        const int count = left < Lanes::kRowsAtOnce ? static_cast<int>(left) : Lanes::kRowsAtOnce;
        Rows<Lanes, T>(block, block.first + done, count, segment).run();
    }
}

}  // namespace
}  // namespace edgedec

// Defines the functions of a path for the table in dispatch.cpp.
#define EDGEDEC_DEFINE_ATTENTION(name, Lanes)                                           \
    namespace edgedec {                                                                 \
    void attend_##name(const AttentionBlock& block) {                                   \
        if (block.rows->layout.bits == 32) return attend_rows<Lanes, float>(block);     \
        if (block.rows->layout.bits == 16) return attend_rows<Lanes, uint16_t>(block);  \
        if (block.rows->layout.bits == 4) return attend_rows<Lanes, Nibbles>(block);    \
        attend_rows<Lanes, int8_t>(block);                                              \
    }                                                                                   \
    void append_##name(const AttentionRows& rows, int64_t head) { append_rows<Lanes>(rows, head); } \
    void score_##name(const LabelBlocks& all) { score_blocks<Lanes>(all); }                          \
    void combine_##name(const float* numbers, int64_t rank, const float* directions, int64_t size, float* out) { \
        combine_directions<Lanes>(numbers, rank, directions, size, out);                                        \
    }                                                                                                          \
    }  // namespace edgedec
