// Products of codes of 4 or 5 bits with AVX-512 VNNI: vpdpbusd, with the codes as its unsigned operand, adds 4 products per row
// into int32 without saturation.
#ifdef EDGEDEC_EMULATE_AVX512  // the same code over SIMDe, for machines without these instructions
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512/add.h>
#include <simde/x86/avx512/and.h>
#include <simde/x86/avx512/dpbusd.h>
#include <simde/x86/avx512/loadu.h>
#include <simde/x86/avx512/or.h>
#include <simde/x86/avx512/set1.h>
#include <simde/x86/avx512/setzero.h>
#include <simde/x86/avx512/slli.h>
#include <simde/x86/avx512/srli.h>
#include <simde/x86/avx512/storeu.h>
#else
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12 warns about its own header: bug 105593
#endif
#include <immintrin.h>
#endif

#include "grid_tile.hpp"

namespace edgedec {
namespace {

constexpr int64_t kPrefetch = 2048;  // distance of prefetches in bytes

inline __m512i four_columns(const int8_t* x) {
    int32_t four;
    __builtin_memcpy(&four, x, sizeof four);
    return _mm512_set1_epi32(four);
}

struct Dot {
    static constexpr bool kFours = true;

    template <int T, int kBits>
    static void run(const uint8_t* block, int64_t count, const int8_t* x, int64_t, const int32_t* start,
                    int32_t (*sums)[kTileRows]) {
        const __m512i fifteen = _mm512_set1_epi8(15), sixteen = _mm512_set1_epi8(16);
        __m512i total[T][2];  // two independent chains for the dot products, which take several cycles
        for (int t = 0; t < T; ++t) total[t][0] = _mm512_set1_epi32(start[t]), total[t][1] = _mm512_setzero_si512();
        for (int64_t i = 0; i < count; ++i, block += kLineBytes * kBits, x += T * kBlockColumns) {
            __m512i highest = _mm512_setzero_si512();
            if constexpr (kBits == 5) highest = _mm512_loadu_si512(block + 4 * kLineBytes);
#pragma GCC unroll 8
            for (int four = 0; four < 8; ++four) {
                const uint8_t* line = block + four / 2 * kLineBytes;
                if (four % 2 == 0) _mm_prefetch(reinterpret_cast<const char*>(line + kPrefetch), _MM_HINT_T0);
                __m512i codes = _mm512_loadu_si512(line);
                codes = _mm512_and_si512(four % 2 ? _mm512_srli_epi16(codes, 4) : codes, fifteen);
                if constexpr (kBits == 5) {
                    const __m512i bit = four <= 4 ? _mm512_slli_epi16(highest, four <= 4 ? 4 - four : 0)
                                                  : _mm512_srli_epi16(highest, four > 4 ? four - 4 : 0);
                    codes = _mm512_or_si512(codes, _mm512_and_si512(bit, sixteen));
                }
                constexpr int kChains = T <= 2 ? 2 : 1;
#pragma GCC unroll 8
                for (int t = 0; t < T; ++t)
                    total[t][four % kChains] =
                        _mm512_dpbusd_epi32(total[t][four % kChains], codes, four_columns(x + 4 * (T * four + t)));
            }
        }
        for (int t = 0; t < T; ++t) _mm512_storeu_si512(sums[t], _mm512_add_epi32(total[t][0], total[t][1]));
    }
};

}  // namespace
}  // namespace edgedec

EDGEDEC_DEFINE_GRID(avx512vnni)
