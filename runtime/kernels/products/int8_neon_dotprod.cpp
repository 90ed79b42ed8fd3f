// int8 products with NEON's dot product extension (Armv8.2 and later): sdot adds four products of signed bytes into int32.
#include <arm_neon.h>

#include "products/int8_tile.hpp"

namespace edgedec {
namespace {

struct Dot {
    using Act = int8_t;
    using Codes = int8x16_t;
    using Sums = int32x4_t;
    static constexpr uint32_t kOffset = 0;
    static constexpr int kRegisters = 16, kDepth = 4, kLanes = 4, kLeast = 4;
    static constexpr int64_t kStep = 16;

    static Codes codes(const int8_t* row) { return vld1q_s8(row); }
    static Codes acts(const Act* x) { return vld1q_s8(x); }
    static void add(Sums& sums, Codes codes, Codes acts) { sums = vdotq_s32(sums, codes, acts); }
    static int32_t total(Sums sums) { return vaddvq_s32(sums); }

    template <int V>
    static void pack(const int8_t* const* rows, Codes* to) {
        for (int first = 0; first < V; first += 4, to += 4) {
            int8x16_t lines[4];
            for (int j = 0; j < 4; ++j) lines[j] = vld1q_s8(rows[j] + 4 * first);
            const int16x8_t low[2] = {vreinterpretq_s16_s8(vzip1q_s8(lines[0], lines[1])),
                                      vreinterpretq_s16_s8(vzip1q_s8(lines[2], lines[3]))};
            const int16x8_t high[2] = {vreinterpretq_s16_s8(vzip2q_s8(lines[0], lines[1])),
                                       vreinterpretq_s16_s8(vzip2q_s8(lines[2], lines[3]))};
            to[0] = vreinterpretq_s8_s16(vzip1q_s16(low[0], low[1]));
            to[1] = vreinterpretq_s8_s16(vzip2q_s16(low[0], low[1]));
            to[2] = vreinterpretq_s8_s16(vzip1q_s16(high[0], high[1]));
            to[3] = vreinterpretq_s8_s16(vzip2q_s16(high[0], high[1]));
        }
    }
    static Codes spread(const Act* x) {
        int32_t four;
        __builtin_memcpy(&four, x, sizeof four);
        return vreinterpretq_s8_s32(vdupq_n_s32(four));
    }
    static void add_outputs(Sums& sums, Codes codes, Codes acts) { add(sums, codes, acts); }
    static Sums load(const int32_t* sums) { return vld1q_s32(sums); }
    static void store(Sums sums, int32_t* to) { vst1q_s32(to, sums); }
    static int64_t slot(int64_t output) { return output; }
};

}  // namespace
}  // namespace edgedec

EDGEDEC_DEFINE_INT8(neon_dotprod)
