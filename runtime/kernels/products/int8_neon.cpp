// int8 products with the NEON instructions of every AArch64 CPU. The sum of two products fits int16, because activations are
// -127 to 127: 2 x 127 x -128 = -32512.
#include <arm_neon.h>

#include "products/int8_tile.hpp"

namespace edgedec {
namespace {

struct Dot {
    using Act = int8_t;
    using Codes = int8x16_t;
    using Sums = int32x4x2_t;
    static constexpr uint32_t kOffset = 0;
    static constexpr int kRegisters = 8, kDepth = 2, kLanes = 8, kLeast = 1;  // a sum is two registers
    static constexpr int64_t kStep = 16;

    static int16x8_t products(Codes codes, Codes acts) {
        return vmlal_high_s8(vmull_s8(vget_low_s8(codes), vget_low_s8(acts)), codes, acts);
    }

    static Codes codes(const int8_t* row) { return vld1q_s8(row); }
    static Codes acts(const Act* x) { return vld1q_s8(x); }
    static void add(Sums& sums, Codes codes, Codes acts) {
        sums.val[0] = vpadalq_s16(sums.val[0], products(codes, acts));
    }
    static int32_t total(Sums sums) { return vaddvq_s32(sums.val[0]); }

    // The order is eight outputs of one column, then of the next column.
    template <int V>
    static void pack(const int8_t* const* rows, Codes* to) {
        for (int v = 0; v < V; ++v) to[v] = vcombine_s8(vld1_s8(rows[0] + 8 * v), vld1_s8(rows[1] + 8 * v));
    }
    static Codes spread(const Act* x) { return vcombine_s8(vdup_n_s8(x[0]), vdup_n_s8(x[1])); }
    static void add_outputs(Sums& sums, Codes codes, Codes acts) {
        const int16x8_t both = products(codes, acts);
        sums.val[0] = vaddw_s16(sums.val[0], vget_low_s16(both));
        sums.val[1] = vaddw_high_s16(sums.val[1], both);
    }
    static Sums load(const int32_t* sums) { return {{vld1q_s32(sums), vld1q_s32(sums + 4)}}; }
    static void store(Sums sums, int32_t* to) {
        vst1q_s32(to, sums.val[0]);
        vst1q_s32(to + 4, sums.val[1]);
    }
    static int64_t slot(int64_t output) { return output; }
};

}  // namespace
}  // namespace edgedec

EDGEDEC_DEFINE_INT8(neon)
