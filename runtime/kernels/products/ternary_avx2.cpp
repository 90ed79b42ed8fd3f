// Ternary products with AVX2: vpmaddubsw with the codes (0 to 2) as its unsigned operand. A pair of products is at least
// -2 * 2 * 128 = -512 and at most 508, so that nothing saturates and 64 pairs fit an int16. Sums are widened every 16 lines.
#include <immintrin.h>

#include "products/ternary_tile.hpp"

namespace edgedec {
namespace {

constexpr int64_t kWiden = 16;          // lines between widenings: 4 pairs each, 64 x -512 = -32768
constexpr int64_t kWidenUnshifted = 8;  // the same with 2 pairs of 4 times the value each, 16 x -2048 = -32768

inline __m256i four_columns(const int8_t* x) {
    int32_t four;
    __builtin_memcpy(&four, x, sizeof four);
    return _mm256_set1_epi32(four);
}

inline void add_now(__m256i& sum, __m256i masked, __m256i act) {
    sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(masked, act));
    // Without this, GCC adds the four products of a token first, and spills most of 32 products to memory.
    __asm__("" : "+x"(sum));
}

struct Dot {
    static constexpr Order kOrder = Order::fours;
    static constexpr bool kRagged = false;

    template <int T>
    static void run(const uint8_t* line, int64_t count, const int8_t* x, int64_t, int32_t (*sums)[kTileRows]) {
        if constexpr (T == 1)
            unshifted(line, count, x, sums[0]);
        else
            shifted<T>(line, count, x, sums);
    }

    // Computes one token, whose time depends on the instructions around the products. The second and the fourth pair of bits
    // are not shifted, so they have four times their value; they have their own sum, which is shifted once at the end.
    static void unshifted(const uint8_t* line, int64_t count, const int8_t* x, int32_t* sums) {
        const __m256i three = _mm256_set1_epi8(3), twelve = _mm256_set1_epi8(12), ones = _mm256_set1_epi16(1);
        __m256i wide[2], wide_by_4[2];
        for (int h = 0; h < 2; ++h) wide[h] = wide_by_4[h] = _mm256_setzero_si256();
        const uint8_t* const end = line + count * kLineBytes;
        while (line < end) {
            __m256i narrow[2], narrow_by_4[2];
            for (int h = 0; h < 2; ++h) narrow[h] = narrow_by_4[h] = _mm256_setzero_si256();
            const uint8_t* const most = line + kWidenUnshifted * kLineBytes;
            for (const uint8_t* const stop = end < most ? end : most; line < stop; line += kLineBytes, x += kLineColumns) {
                prefetch_line(line);
                const __m256i act[4] = {four_columns(x), four_columns(x + 4), four_columns(x + 8), four_columns(x + 12)};
                for (int h = 0; h < 2; ++h) {
                    const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(line + 32 * h));
                    const __m256i upper = _mm256_srli_epi16(codes, 4);
                    add_now(narrow[h], _mm256_and_si256(codes, three), act[0]);
                    add_now(narrow_by_4[h], _mm256_and_si256(codes, twelve), act[1]);
                    add_now(narrow[h], _mm256_and_si256(upper, three), act[2]);
                    add_now(narrow_by_4[h], _mm256_and_si256(upper, twelve), act[3]);
                }
            }
            for (int h = 0; h < 2; ++h) {
                wide[h] = _mm256_add_epi32(wide[h], _mm256_madd_epi16(narrow[h], ones));
                wide_by_4[h] = _mm256_add_epi32(wide_by_4[h], _mm256_madd_epi16(narrow_by_4[h], ones));
            }
        }
        for (int h = 0; h < 2; ++h)
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums + 8 * h),
                                _mm256_add_epi32(wide[h], _mm256_srai_epi32(wide_by_4[h], 2)));  // exact
    }

    // Up to four tokens use both halves of a line (rows 0-7 and 8-15) at a time. More tokens use one half and then the other,
    // because eight sums, the codes and the activations fill the 16 registers.
    template <int T>
    static void shifted(const uint8_t* line, int64_t count, const int8_t* x, int32_t (*sums)[kTileRows]) {
        constexpr int kHalves = T <= 4 ? 2 : 1;
        const __m256i three = _mm256_set1_epi8(3), ones = _mm256_set1_epi16(1);
        for (int half = 0; half < 2; half += kHalves) {
            __m256i wide[T][kHalves];
            for (int t = 0; t < T; ++t)
                for (int h = 0; h < kHalves; ++h) wide[t][h] = _mm256_setzero_si256();
            const uint8_t* at = line + 32 * half;
            const int8_t* fours = x;
            for (int64_t left = count; left > 0; left -= kWiden) {
                __m256i narrow[T][kHalves];
                for (int t = 0; t < T; ++t)
                    for (int h = 0; h < kHalves; ++h) narrow[t][h] = _mm256_setzero_si256();
                for (int64_t i = left < kWiden ? left : kWiden; i > 0; --i, at += kLineBytes, fours += T * kLineColumns) {
                    prefetch_line(at);
                    __m256i codes[kHalves];
                    for (int h = 0; h < kHalves; ++h)
                        codes[h] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at + 32 * h));
#pragma GCC unroll 4
                    for (int four = 0; four < 4; ++four) {
                        __m256i masked[kHalves];
                        for (int h = 0; h < kHalves; ++h)
                            masked[h] = _mm256_and_si256(_mm256_srli_epi16(codes[h], 2 * four), three);
#pragma GCC unroll 8
                        for (int t = 0; t < T; ++t) {
                            const __m256i act = four_columns(fours + 4 * (T * four + t));
                            for (int h = 0; h < kHalves; ++h) add_now(narrow[t][h], masked[h], act);
                        }
                    }
                }
                for (int t = 0; t < T; ++t)
                    for (int h = 0; h < kHalves; ++h)
                        wide[t][h] = _mm256_add_epi32(wide[t][h], _mm256_madd_epi16(narrow[t][h], ones));
            }
            for (int t = 0; t < T; ++t)
                for (int h = 0; h < kHalves; ++h)
                    _mm256_store_si256(reinterpret_cast<__m256i*>(&sums[t][8 * (half + h)]), wide[t][h]);
        }
    }
};

}  // namespace
}  // namespace edgedec

EDGEDEC_DEFINE_PATH(avx2)
