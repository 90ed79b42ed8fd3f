// Products of codes of 4 or 5 bits with AVX2: vpmaddubsw with the codes as its unsigned operand. A pair of products is at most
// 2 * 15 * 128 in magnitude, so that the 8 pairs of a block fit an int16; of codes up to 26, the 4 pairs of half a block do.
#include <immintrin.h>

#include "products/grid_tile.hpp"

namespace edgedec {
namespace {

inline __m256i four_columns(const int8_t* x) {
    int32_t four;
    __builtin_memcpy(&four, x, sizeof four);
    return _mm256_set1_epi32(four);
}

struct Dot {
    static constexpr Order kOrder = Order::fours;

    // Up to four tokens use both halves of a line (rows 0-7 and 8-15) at a time, more tokens one half and then the other.
    template <int T, int kBits>
    static void run(const uint8_t* block, int64_t count, const int8_t* x, int64_t, const int32_t* start,
                    int32_t (*sums)[kTileRows]) {
        constexpr int kHalves = T <= 4 ? 2 : 1;
        const __m256i fifteen = _mm256_set1_epi8(15), sixteen = _mm256_set1_epi8(16), ones = _mm256_set1_epi16(1);
        for (int half = 0; half < 2; half += kHalves) {
            __m256i wide[T][kHalves], narrow[T][kHalves];
            for (int t = 0; t < T; ++t)
                for (int h = 0; h < kHalves; ++h) wide[t][h] = _mm256_set1_epi32(start[t]);
            const auto widen = [&] {
                for (int t = 0; t < T; ++t)
                    for (int h = 0; h < kHalves; ++h)
                        wide[t][h] = _mm256_add_epi32(wide[t][h], _mm256_madd_epi16(narrow[t][h], ones));
            };
            const uint8_t* at = block + 32 * half;
            const int8_t* fours = x;
            for (int64_t i = 0; i < count; ++i, at += kLineBytes * kBits, fours += T * kBlockColumns) {
                __m256i highest[kHalves] = {};
                if constexpr (kBits == 5) {
                    prefetch_codes(at + 4 * kLineBytes);
                    for (int h = 0; h < kHalves; ++h)
                        highest[h] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at + 4 * kLineBytes + 32 * h));
                }
#pragma GCC unroll 8
                for (int four = 0; four < 8; ++four) {
                    const uint8_t* line = at + four / 2 * kLineBytes;
                    if (four % 2 == 0) prefetch_codes(line);
                    __m256i codes[kHalves];
                    for (int h = 0; h < kHalves; ++h) {
                        codes[h] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(line + 32 * h));
                        codes[h] = _mm256_and_si256(four % 2 ? _mm256_srli_epi16(codes[h], 4) : codes[h], fifteen);
                        if constexpr (kBits == 5) {
                            const __m256i bit = four <= 4 ? _mm256_slli_epi16(highest[h], four <= 4 ? 4 - four : 0)
                                                          : _mm256_srli_epi16(highest[h], four > 4 ? four - 4 : 0);
                            codes[h] = _mm256_or_si256(codes[h], _mm256_and_si256(bit, sixteen));
                        }
                    }
                    const bool first = four == 0 || (kBits == 5 && four == 4);
#pragma GCC unroll 8
                    for (int t = 0; t < T; ++t) {
                        const __m256i act = four_columns(fours + 4 * (T * four + t));
                        for (int h = 0; h < kHalves; ++h) {
                            const __m256i pairs = _mm256_maddubs_epi16(codes[h], act);
                            narrow[t][h] = first ? pairs : _mm256_add_epi16(narrow[t][h], pairs);
                            // Without this, GCC makes many products before it adds them, and spills them to memory.
                            __asm__("" : "+x"(narrow[t][h]));
                        }
                    }
                    if (kBits == 5 && four == 3) widen();
                }
                widen();
            }
            for (int t = 0; t < T; ++t)
                for (int h = 0; h < kHalves; ++h)
                    _mm256_store_si256(reinterpret_cast<__m256i*>(&sums[t][8 * (half + h)]), wide[t][h]);
        }
    }
};

}  // namespace
}  // namespace edgedec

EDGEDEC_DEFINE_GRID(avx2)
