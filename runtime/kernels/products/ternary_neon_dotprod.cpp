// Ternary products with NEON's dot product extension (Armv8.2 and later): sdot multiplies 4 rows x 4 columns by one lane of
// the activations.
#include <arm_neon.h>

#define EDGEDEC_NEON
#include "products/ternary_tile.hpp"

namespace edgedec {
namespace {

constexpr int64_t kPrefetch = 2048;  // distance of prefetches in bytes

struct Dot {
    static constexpr Order kOrder = Order::rows;
    static constexpr bool kRagged = false;

    // A quarter of a line is 4 rows. Eight tokens use two quarters at a time, which takes 16 sums in 32 registers.
    template <int T>
    static void run(const uint8_t* line, int64_t count, const int8_t* x, int64_t stride, int32_t (*sums)[kTileRows]) {
        constexpr int kQuarters = T <= 4 ? 4 : 2;
        const uint8x16_t three = vdupq_n_u8(3);
        for (int quarter = 0; quarter < 4; quarter += kQuarters) {
            int32x4_t total[T][kQuarters];
            for (int t = 0; t < T; ++t)
                for (int q = 0; q < kQuarters; ++q) total[t][q] = vdupq_n_s32(0);
            const uint8_t* at = line + 16 * quarter;
            const int8_t* columns = x;
            for (int64_t i = 0; i < count; ++i, at += kLineBytes, columns += kLineColumns) {
                __builtin_prefetch(at + kPrefetch);
                int8x16_t masked[kQuarters][4];
                for (int q = 0; q < kQuarters; ++q) {
                    const uint8x16_t codes = vld1q_u8(at + 16 * q);
                    masked[q][0] = vreinterpretq_s8_u8(vandq_u8(codes, three));
                    masked[q][1] = vreinterpretq_s8_u8(vandq_u8(vshrq_n_u8(codes, 2), three));
                    masked[q][2] = vreinterpretq_s8_u8(vandq_u8(vshrq_n_u8(codes, 4), three));
                    masked[q][3] = vreinterpretq_s8_u8(vshrq_n_u8(codes, 6));
                }
#pragma GCC unroll 8
                for (int t = 0; t < T; ++t) {
                    const int8x16_t act = vld1q_s8(columns + t * stride);
                    for (int q = 0; q < kQuarters; ++q) {
                        total[t][q] = vdotq_laneq_s32(total[t][q], masked[q][0], act, 0);
                        total[t][q] = vdotq_laneq_s32(total[t][q], masked[q][1], act, 1);
                        total[t][q] = vdotq_laneq_s32(total[t][q], masked[q][2], act, 2);
                        total[t][q] = vdotq_laneq_s32(total[t][q], masked[q][3], act, 3);
                    }
                }
            }
            for (int t = 0; t < T; ++t)
                for (int q = 0; q < kQuarters; ++q) vst1q_s32(&sums[t][4 * (quarter + q)], total[t][q]);
        }
    }
};

}  // namespace
}  // namespace edgedec

EDGEDEC_DEFINE_PATH(neon_dotprod)
