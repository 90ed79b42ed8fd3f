// The scores of labels, and sums of directions, over the vectors of a path (attention_select.hpp).
#pragma once

#include "attention/attention.hpp"

namespace edgedec {
namespace {

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

}  // namespace
}  // namespace edgedec
