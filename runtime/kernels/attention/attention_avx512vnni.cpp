// Attention with AVX-512F: 16 keys or dimensions at a time.
#ifdef EDGEDEC_EMULATE_AVX512  // SIMDe has no float16 conversions, so only the matrix products are emulated
#include "attention/attention_scalar.hpp"

EDGEDEC_DEFINE_ATTENTION(avx512vnni, Scalar)
EDGEDEC_DEFINE_ROWS(avx512vnni, Scalar)
#else
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12 warns about its own header
#endif
#include <immintrin.h>

#include "attention/attention_tile.hpp"
#include "rows/rows_tile.hpp"

namespace edgedec {
namespace {

struct Avx512 {
    using Type = __m512;
    static constexpr int64_t kWidth = 16;
    static constexpr int kRowsAtOnce = 4;
    static constexpr int kSums = 16;
    static Type load(const float* x) { return _mm512_loadu_ps(x); }
    static Type load(const uint16_t* x) {
        return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
    }
    static Type load(const int8_t* x) {
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x))));
    }
    static Type load(NibblePlace x) {
        // The table is read by the lowest four bits of each lane, so the bits above need not be cleared.
        const __m512 numbers = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
        const __m512i counts = _mm512_setr_epi32(0, 0, 4, 4, 8, 8, 12, 12, 16, 16, 20, 20, 24, 24, 28, 28);
        return _mm512_permutexvar_ps(_mm512_srlv_epi32(_mm512_set1_epi64(x.group()), counts), numbers);
    }
    static float one(const float* x) { return *x; }
    static float one(const uint16_t* x) {
        return _mm512_cvtss_f32(_mm512_cvtph_ps(_mm256_castsi128_si256(_mm_cvtsi32_si128(*x))));
    }
    static float one(const int8_t* x) { return *x; }
    static float one(NibblePlace x) { return x.code(); }
    static void store(float* to, Type x) { _mm512_storeu_ps(to, x); }
    static void store_half(uint16_t* to, Type x) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
    }
    static Type broadcast(float x) { return _mm512_set1_ps(x); }
    static Type fma(Type a, Type b, Type c) { return _mm512_fmadd_ps(a, b, c); }
    static Type mul(Type a, Type b) { return _mm512_mul_ps(a, b); }
    static Type div(Type a, Type b) { return _mm512_div_ps(a, b); }
    static Type add(Type a, Type b) { return _mm512_add_ps(a, b); }
    static Type sub(Type a, Type b) { return _mm512_sub_ps(a, b); }
    static Type min(Type a, Type b) { return _mm512_min_ps(a, b); }
    static Type max(Type a, Type b) { return _mm512_max_ps(a, b); }
    static Type times_power(Type y, Type z) {
        const __m512i power = _mm512_slli_epi32(_mm512_castps_si512(z), 23);
        return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(y), power));
    }
};

}  // namespace
}  // namespace edgedec

EDGEDEC_DEFINE_ATTENTION(avx512vnni, Avx512)
EDGEDEC_DEFINE_ROWS(avx512vnni, Avx512)
#endif
