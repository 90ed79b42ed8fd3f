// Ternary products with the NEON instructions of every AArch64 CPU: 8 products at a time are added into int16. A product is at
// least -2 * 128, so that 127 of them fit. Sums are widened every 16 lines, which add 64 products to each lane.
#include <arm_neon.h>

#define EDGEDEC_NEON
#include "products/ternary_tile.hpp"

namespace edgedec {
namespace {

constexpr int64_t kWiden = 16;       // lines between widenings
constexpr int64_t kPrefetch = 2048;  // distance of prefetches in bytes

inline int8x8_t four_columns_twice(const int8_t* x) {
    int32_t four;
    __builtin_memcpy(&four, x, sizeof four);
    return vreinterpret_s8_s32(vdup_n_s32(four));
}

struct Dot {
    static constexpr Order kOrder = Order::rows;
    static constexpr bool kRagged = false;

    // A quarter of a line is 4 rows. A few tokens use several quarters at a time; eight tokens use one, which takes 16 sums in
    // 32 registers.
    template <int T>
    static void run(const uint8_t* line, int64_t count, const int8_t* x, int64_t stride, int32_t (*sums)[kTileRows]) {
        constexpr int kQuarters = T <= 2 ? 4 : T <= 4 ? 2 : 1;
        const uint8x16_t three = vdupq_n_u8(3);
        for (int quarter = 0; quarter < 4; quarter += kQuarters) {
            int32x4_t wide[T][kQuarters][2];
            for (int t = 0; t < T; ++t)
                for (int q = 0; q < kQuarters; ++q) wide[t][q][0] = wide[t][q][1] = vdupq_n_s32(0);
            const uint8_t* at = line + 16 * quarter;
            const int8_t* columns = x;
            for (int64_t left = count; left > 0; left -= kWiden) {
                int16x8_t narrow[T][kQuarters][2];
                for (int t = 0; t < T; ++t)
                    for (int q = 0; q < kQuarters; ++q) narrow[t][q][0] = narrow[t][q][1] = vdupq_n_s16(0);
                for (int64_t i = left < kWiden ? left : kWiden; i > 0; --i, at += kLineBytes, columns += kLineColumns) {
                    __builtin_prefetch(at + kPrefetch);
                    uint8x16_t codes[kQuarters];
                    for (int q = 0; q < kQuarters; ++q) codes[q] = vld1q_u8(at + 16 * q);
#pragma GCC unroll 4
                    for (int four = 0; four < 4; ++four) {
                        int8x16_t masked[kQuarters];
                        for (int q = 0; q < kQuarters; ++q) {
                            masked[q] = vreinterpretq_s8_u8(vandq_u8(codes[q], three));
                            codes[q] = vshrq_n_u8(codes[q], 2);
                        }
#pragma GCC unroll 8
                        for (int t = 0; t < T; ++t) {
                            const int8x8_t act = four_columns_twice(columns + t * stride + 4 * four);
                            for (int q = 0; q < kQuarters; ++q) {
                                narrow[t][q][0] = vmlal_s8(narrow[t][q][0], vget_low_s8(masked[q]), act);
                                narrow[t][q][1] = vmlal_s8(narrow[t][q][1], vget_high_s8(masked[q]), act);
                            }
                        }
                    }
                }
                for (int t = 0; t < T; ++t)
                    for (int q = 0; q < kQuarters; ++q)
                        for (int pair = 0; pair < 2; ++pair)
                            wide[t][q][pair] = vpadalq_s16(wide[t][q][pair], narrow[t][q][pair]);
            }
            for (int t = 0; t < T; ++t)
                for (int q = 0; q < kQuarters; ++q)  // two neighbouring lanes belong to a row
                    vst1q_s32(&sums[t][4 * (quarter + q)], vpaddq_s32(wide[t][q][0], wide[t][q][1]));
        }
    }
};

}  // namespace
}  // namespace edgedec

EDGEDEC_DEFINE_PATH(neon)
