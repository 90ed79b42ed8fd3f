// int8 products with AVX-512 VNNI: vpdpbusd needs one unsigned operand. Codes are used as code + 128, and 128 times the sum of
// the activations is subtracted at the end. Additions are modulo 2^32, so that intermediate overflows are harmless.
#ifdef EDGEDEC_EMULATE_AVX512  // the same code over SIMDe, for machines without these instructions
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512/dpbusd.h>
#include <simde/x86/avx512/loadu.h>
#include <simde/x86/avx512/set1.h>
#include <simde/x86/avx512/setzero.h>
#include <simde/x86/avx512/storeu.h>
#include <simde/x86/avx512/unpackhi.h>
#include <simde/x86/avx512/unpacklo.h>
#include <simde/x86/avx512/xor.h>
#undef _mm512_reduce_add_epi32
#define _mm512_reduce_add_epi32(value) total_of(value)  // SIMDe 0.7 lacks this one
static int total_of(simde__m512i value) {
    unsigned numbers[16], total = 0;
    __builtin_memcpy(numbers, &value, sizeof numbers);
    for (unsigned number : numbers) total += number;
    return static_cast<int>(total);
}
#else
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12 warns about its own header: bug 105593
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>
#endif

#include "products/int8_tile.hpp"

namespace edgedec {
namespace {

struct Dot {
    using Act = int8_t;
    using Codes = __m512i;
    using Sums = __m512i;
    static constexpr uint32_t kOffset = 128;
    static constexpr int kRegisters = 16, kDepth = 4, kLanes = 16, kLeast = 4;
    static constexpr int64_t kStep = 64;

    static Codes codes(const int8_t* row) {
        return _mm512_xor_si512(_mm512_loadu_si512(row), _mm512_set1_epi8(static_cast<char>(0x80)));
    }
    static Codes acts(const Act* x) { return _mm512_loadu_si512(x); }
    static void add(Sums& sums, Codes codes, Codes acts) { sums = _mm512_dpbusd_epi32(sums, codes, acts); }
    static int32_t total(Sums sums) { return _mm512_reduce_add_epi32(sums); }

    template <int V>
    static void pack(const int8_t* const* rows, Codes* to) {
        static_assert(V == 4);
        const __m512i a = codes(rows[0]), b = codes(rows[1]), c = codes(rows[2]), d = codes(rows[3]);
        const __m512i low[2] = {_mm512_unpacklo_epi8(a, b), _mm512_unpacklo_epi8(c, d)};
        const __m512i high[2] = {_mm512_unpackhi_epi8(a, b), _mm512_unpackhi_epi8(c, d)};
        to[0] = _mm512_unpacklo_epi16(low[0], low[1]);
        to[1] = _mm512_unpackhi_epi16(low[0], low[1]);
        to[2] = _mm512_unpacklo_epi16(high[0], high[1]);
        to[3] = _mm512_unpackhi_epi16(high[0], high[1]);
    }
    static Codes spread(const Act* x) {
        int32_t four;
        __builtin_memcpy(&four, x, sizeof four);
        return _mm512_set1_epi32(four);
    }
    static void add_outputs(Sums& sums, Codes codes, Codes acts) { add(sums, codes, acts); }
    static Sums load(const int32_t* sums) { return _mm512_loadu_si512(sums); }
    static void store(Sums sums, int32_t* to) { _mm512_storeu_si512(to, sums); }
    // pack() puts output 16 * quarter + 4 * vector + i into that quarter of that vector.
    static int64_t slot(int64_t output) { return output % 16 / 4 * 16 + output / 16 * 4 + output % 4; }
};

}  // namespace
}  // namespace edgedec

EDGEDEC_DEFINE_INT8(avx512vnni)
