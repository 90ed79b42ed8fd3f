// Products of codes of 4 or 5 bits with the NEON instructions of every AArch64 CPU: 8 products at a time are added into int16. A
// block adds 8 products to each lane, which are at most 26 * 128 in magnitude, so that they fit.
#include "products/grid_neon.hpp"

namespace edgedec {
namespace {

constexpr int64_t kPrefetch = 2048;  // distance of prefetches in bytes

inline int8x8_t four_columns_twice(const int8_t* x) {
    int32_t four;
    __builtin_memcpy(&four, x, sizeof four);
    return vreinterpret_s8_s32(vdup_n_s32(four));
}

struct Dot {
    static constexpr Order kOrder = Order::rows;

    // A quarter of a line is 4 rows.
    template <int T, int kBits>
    static void run(const uint8_t* block, int64_t count, const int8_t* x, int64_t stride, const int32_t* start,
                    int32_t (*sums)[kTileRows]) {
        for (int quarter = 0; quarter < 4; ++quarter) {
            int32x4_t wide[T][2];
            for (int t = 0; t < T; ++t) wide[t][0] = wide[t][1] = vdupq_n_s32(0);
            const uint8_t* at = block + 16 * quarter;
            const int8_t* columns = x;
            for (int64_t i = 0; i < count; ++i, at += kLineBytes * kBits, columns += kBlockColumns) {
                __builtin_prefetch(at + kPrefetch);
                int16x8_t narrow[T][2];
                for (int t = 0; t < T; ++t) narrow[t][0] = narrow[t][1] = vdupq_n_s16(0);
#pragma GCC unroll 8
                for (int four = 0; four < 8; ++four) {
                    const int8x16_t codes = four_codes<kBits>(at, four);
#pragma GCC unroll 8
                    for (int t = 0; t < T; ++t) {
                        const int8x8_t act = four_columns_twice(columns + t * stride + 4 * four);
                        narrow[t][0] = vmlal_s8(narrow[t][0], vget_low_s8(codes), act);
                        narrow[t][1] = vmlal_s8(narrow[t][1], vget_high_s8(codes), act);
                    }
                }
                for (int t = 0; t < T; ++t)
                    for (int pair = 0; pair < 2; ++pair) wide[t][pair] = vpadalq_s16(wide[t][pair], narrow[t][pair]);
            }
            for (int t = 0; t < T; ++t)  // two neighbouring lanes belong to a row
                vst1q_s32(&sums[t][4 * quarter], vaddq_s32(vdupq_n_s32(start[t]), vpaddq_s32(wide[t][0], wide[t][1])));
        }
    }
};

}  // namespace
}  // namespace edgedec

EDGEDEC_DEFINE_GRID(neon)
