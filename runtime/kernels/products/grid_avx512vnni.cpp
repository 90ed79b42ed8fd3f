// Products of codes of 4 or 5 bits with AVX-512 VNNI: vpdpbusd, with the codes as its unsigned operand, adds 4 products per row
// into int32 without saturation.
#include "products/avx512vnni.hpp"
#include "products/grid_tile.hpp"

namespace edgedec {
namespace {

struct Dot {
    static constexpr Order kOrder = Order::fours;

    template <int T, int kBits>
    static void run(const uint8_t* block, int64_t count, const int8_t* x, int64_t, const int32_t* start,
                    int32_t (*sums)[kTileRows]) {
        const __m512i fifteen = _mm512_set1_epi8(15), sixteen = _mm512_set1_epi8(16);
        __m512i total[T][2];  // two independent chains for the dot products, which take several cycles
        for (int t = 0; t < T; ++t) total[t][0] = _mm512_set1_epi32(start[t]), total[t][1] = _mm512_setzero_si512();
        for (int64_t i = 0; i < count; ++i, block += kLineBytes * kBits, x += T * kBlockColumns) {
            __m512i highest = _mm512_setzero_si512();
            if constexpr (kBits == 5) {
                prefetch_codes(block + 4 * kLineBytes);
                highest = _mm512_loadu_si512(block + 4 * kLineBytes);
            }
#pragma GCC unroll 8
            for (int four = 0; four < 8; ++four) {
                const uint8_t* line = block + four / 2 * kLineBytes;
                if (four % 2 == 0) prefetch_codes(line);
                __m512i codes = _mm512_loadu_si512(line);
                codes = _mm512_and_si512(four % 2 ? _mm512_srli_epi16(codes, 4) : codes, fifteen);
                if constexpr (kBits == 5) {
                    const __m512i bit = four <= 4 ? _mm512_slli_epi16(highest, four <= 4 ? 4 - four : 0)
                                                  : _mm512_srli_epi16(highest, four > 4 ? four - 4 : 0);
                    codes = _mm512_or_si512(codes, _mm512_and_si512(bit, sixteen));
                }
                constexpr int kChains = T <= 2 ? 2 : 1;
#pragma GCC unroll 8
                for (int t = 0; t < T; ++t) add_products(total[t][four % kChains], codes, x + 4 * (T * four + t));
            }
        }
        for (int t = 0; t < T; ++t) _mm512_storeu_si512(sums[t], _mm512_add_epi32(total[t][0], total[t][1]));
    }
};

}  // namespace
}  // namespace edgedec

EDGEDEC_DEFINE_GRID(avx512vnni)
