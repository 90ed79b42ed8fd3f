// Products of codes of 4 or 5 bits with NEON's dot product extension (Armv8.2 and later): sdot multiplies 4 rows x 4 columns by
// one lane of the activations.
#include "products/grid_neon.hpp"

namespace edgedec {
namespace {

constexpr int64_t kPrefetch = 2048;  // distance of prefetches in bytes

struct Dot {
    static constexpr Order kOrder = Order::rows;

    // A quarter of a line is 4 rows. Eight tokens use two quarters at a time, which takes 16 sums in 32 registers.
    template <int T, int kBits>
    static void run(const uint8_t* block, int64_t count, const int8_t* x, int64_t stride, const int32_t* start,
                    int32_t (*sums)[kTileRows]) {
        constexpr int kQuarters = T <= 4 ? 4 : 2;
        for (int quarter = 0; quarter < 4; quarter += kQuarters) {
            int32x4_t total[T][kQuarters];
            for (int t = 0; t < T; ++t)
                for (int q = 0; q < kQuarters; ++q) total[t][q] = vdupq_n_s32(start[t]);
            const uint8_t* at = block + 16 * quarter;
            const int8_t* columns = x;
            for (int64_t i = 0; i < count; ++i, at += kLineBytes * kBits, columns += kBlockColumns) {
                __builtin_prefetch(at + kPrefetch);
#pragma GCC unroll 2
                for (int part = 0; part < 2; ++part) {
                    int8x16_t codes[kQuarters][4];
                    for (int q = 0; q < kQuarters; ++q)
                        for (int four = 0; four < 4; ++four)
                            codes[q][four] = four_codes<kBits>(at + 16 * q, 4 * part + four);
#pragma GCC unroll 8
                    for (int t = 0; t < T; ++t) {
                        const int8x16_t act = vld1q_s8(columns + t * stride + 16 * part);
                        for (int q = 0; q < kQuarters; ++q) {
                            total[t][q] = vdotq_laneq_s32(total[t][q], codes[q][0], act, 0);
                            total[t][q] = vdotq_laneq_s32(total[t][q], codes[q][1], act, 1);
                            total[t][q] = vdotq_laneq_s32(total[t][q], codes[q][2], act, 2);
                            total[t][q] = vdotq_laneq_s32(total[t][q], codes[q][3], act, 3);
                        }
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

EDGEDEC_DEFINE_GRID(neon_dotprod)
