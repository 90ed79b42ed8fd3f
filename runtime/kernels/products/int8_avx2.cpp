// int8 products with AVX2: codes and activations are widened to int16, and vpmaddwd adds two products into an int32, which is
// exact for every int8.
#include <immintrin.h>

#include "products/int8_tile.hpp"

namespace edgedec {
namespace {

struct Dot {
    using Act = int16_t;
    using Codes = __m256i;
    using Sums = __m256i;
    static constexpr uint32_t kOffset = 0;
    static constexpr int kRegisters = 8, kDepth = 2, kLanes = 8, kLeast = 1;
    static constexpr int64_t kStep = 16;

    static Codes codes(const int8_t* row) {
        return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row)));
    }
    static Codes acts(const Act* x) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)); }
    static void add(Sums& sums, Codes codes, Codes acts) {
        sums = _mm256_add_epi32(sums, _mm256_madd_epi16(codes, acts));
        // Without this, GCC adds the products of several steps first, and spills most of them to memory.
        __asm__("" : "+x"(sums));
    }
    static int32_t total(Sums sums) {
        __m128i four = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
        four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4E));
        return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xB1)));
    }

    template <int V>
    static void pack(const int8_t* const* rows, Codes* to) {
        if constexpr (V == 1) {
            const __m128i a = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(rows[0]));
            const __m128i b = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(rows[1]));
            to[0] = _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(a, b));
        } else {
            for (int i = 0; i < V; i += 2) {
                const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[0] + 8 * i));
                const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[1] + 8 * i));
                to[i] = _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(a, b));
                to[i + 1] = _mm256_cvtepi8_epi16(_mm_unpackhi_epi8(a, b));
            }
        }
    }
    static Codes spread(const Act* x) {
        int32_t two;
        __builtin_memcpy(&two, x, sizeof two);
        return _mm256_set1_epi32(two);
    }
    static void add_outputs(Sums& sums, Codes codes, Codes acts) { add(sums, codes, acts); }
    static Sums load(const int32_t* sums) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sums)); }
    static void store(Sums sums, int32_t* to) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), sums); }
    static int64_t slot(int64_t output) { return output; }
};

}  // namespace
}  // namespace edgedec

EDGEDEC_DEFINE_INT8(avx2)
