// Attention with AVX2, fused multiply-add and float16 conversions: 8 keys or dimensions at a time.
#include <immintrin.h>

#include "attention/attention_tile.hpp"
#include "rows/rows_tile.hpp"

namespace edgedec {
namespace {

struct Avx2 {
    using Type = __m256;
    static constexpr int64_t kWidth = 8;
    static constexpr int kRowsAtOnce = 4;
    static constexpr int kSums = 8;
    static Type load(const float* x) { return _mm256_loadu_ps(x); }
    static Type load(const uint16_t* x) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x))); }
    static Type load(const int8_t* x) {
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(x))));
    }
    static Type load(NibblePlace x) {
        const __m256i steps = _mm256_setr_epi32(0, 0, 4, 4, 8, 8, 12, 12);
        const __m256i counts = _mm256_add_epi32(steps, _mm256_set1_epi32(static_cast<int>(x.at & 8) << 1));
        const __m256i codes = _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi64x(x.group()), counts), _mm256_set1_epi32(15));
        return _mm256_cvtepi32_ps(_mm256_sub_epi32(codes, _mm256_set1_epi32(kNibbleBias)));
    }
    static float one(const float* x) { return *x; }
    static float one(const uint16_t* x) { return _cvtsh_ss(*x); }
    static float one(const int8_t* x) { return *x; }
    static float one(NibblePlace x) { return x.code(); }
    static void store(float* to, Type x) { _mm256_storeu_ps(to, x); }
    static void store_half(uint16_t* to, Type x) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
    }
    static Type broadcast(float x) { return _mm256_set1_ps(x); }
    static Type fma(Type a, Type b, Type c) { return _mm256_fmadd_ps(a, b, c); }
    static Type mul(Type a, Type b) { return _mm256_mul_ps(a, b); }
    static Type div(Type a, Type b) { return _mm256_div_ps(a, b); }
    static Type add(Type a, Type b) { return _mm256_add_ps(a, b); }
    static Type sub(Type a, Type b) { return _mm256_sub_ps(a, b); }
    static Type min(Type a, Type b) { return _mm256_min_ps(a, b); }
    static Type max(Type a, Type b) { return _mm256_max_ps(a, b); }
    static Type times_power(Type y, Type z) {
        const __m256i power = _mm256_slli_epi32(_mm256_castps_si256(z), 23);
        return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(y), power));
    }
};

}  // namespace
}  // namespace edgedec

EDGEDEC_DEFINE_ATTENTION(avx2, Avx2)
EDGEDEC_DEFINE_ROWS(avx2, Avx2)
