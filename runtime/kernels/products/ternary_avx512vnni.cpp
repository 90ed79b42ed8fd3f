// Ternary products with AVX-512 VNNI: vpdpbusd, with the codes as its unsigned operand, adds 4 products per row into int32
// without saturation.
#include "products/avx512vnni.hpp"
#ifdef EDGEDEC_EMULATE_AVX512
#undef _mm512_srai_epi32
#define _mm512_srai_epi32(value, bits) shifted_right(value, bits)  // SIMDe 0.7 lacks this one
static simde__m512i shifted_right(simde__m512i value, unsigned bits) {
    int numbers[16];
    __builtin_memcpy(numbers, &value, sizeof numbers);
    for (int& number : numbers) number >>= bits;
    __builtin_memcpy(&value, numbers, sizeof numbers);
    return value;
}
#endif
#include "products/ternary_tile.hpp"

namespace edgedec {
namespace {

// Lines whose unshifted codes, of up to 4^3 times their value, have sums in int32: 4096 x 4 columns x 128 x 128 < 2^31.
constexpr int64_t kUnshiftedLines = 4096;

struct Dot {
    static constexpr Order kOrder = Order::fours;
    static constexpr bool kRagged = false;

    template <int T>
    static void run(const uint8_t* line, int64_t count, const int8_t* x, int64_t, int32_t (*sums)[kTileRows]) {
        if (T <= 4 && count <= kUnshiftedLines)
            unshifted<T>(line, count, x, sums);
        else
            shifted<T>(line, count, x, sums);
    }

    // Computes up to four tokens with a sum for each pair of bits, which are masked in place; the sums are shifted once at the
    // end. The four sums are also independent chains for the dot products, which take several cycles.
    template <int T>
    static void unshifted(const uint8_t* line, int64_t count, const int8_t* x, int32_t (*sums)[kTileRows]) {
        __m512i parts[T][4];
        for (int t = 0; t < T; ++t)
            for (int four = 0; four < 4; ++four) parts[t][four] = _mm512_setzero_si512();
        for (int64_t i = 0; i < count; ++i, line += kLineBytes, x += T * kLineColumns) {
            prefetch_line(line);
            const __m512i codes = _mm512_loadu_si512(line);
#pragma GCC unroll 4
            for (int four = 0; four < 4; ++four) {
                const __m512i masked = _mm512_and_si512(codes, _mm512_set1_epi8(static_cast<char>(3 << 2 * four)));
#pragma GCC unroll 4
                for (int t = 0; t < T; ++t) add_products(parts[t][four], masked, x + 4 * (T * four + t));
            }
        }
        for (int t = 0; t < T; ++t) {
            __m512i total = parts[t][0];
            for (int four = 1; four < 4; ++four)  // exact: a multiple of 4^four
                total = _mm512_add_epi32(total, _mm512_srai_epi32(parts[t][four], 2 * four));
            _mm512_storeu_si512(sums[t], total);
        }
    }

    template <int T>
    static void shifted(const uint8_t* line, int64_t count, const int8_t* x, int32_t (*sums)[kTileRows]) {
        const __m512i three = _mm512_set1_epi8(3);
        __m512i total[T];
        for (int t = 0; t < T; ++t) total[t] = _mm512_setzero_si512();
        for (int64_t i = 0; i < count; ++i, line += kLineBytes, x += T * kLineColumns) {
            prefetch_line(line);
            const __m512i codes = _mm512_loadu_si512(line);
#pragma GCC unroll 4
            for (int four = 0; four < 4; ++four) {
                const __m512i masked = _mm512_and_si512(_mm512_srli_epi16(codes, 2 * four), three);
#pragma GCC unroll 8
                for (int t = 0; t < T; ++t) add_products(total[t], masked, x + 4 * (T * four + t));
            }
        }
        for (int t = 0; t < T; ++t) _mm512_storeu_si512(sums[t], total[t]);
    }
};

}  // namespace
}  // namespace edgedec

EDGEDEC_DEFINE_PATH(avx512vnni)
