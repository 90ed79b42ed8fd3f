// int8 products with the matrix products of FEAT_I8MM, for matrices that are stored by rows: smmla multiplies 2 stored rows x 8
// columns by 2 tokens x 8 columns.
#include <arm_neon.h>

#include "products/int8_tile.hpp"

namespace edgedec {
namespace {

constexpr int64_t kDepth = 8;  // columns of a product

// The products of several stored rows at a time, which share the activations that are loaded. With eight rows and more than four
// tokens, GCC spills sums.
template <int T>
struct PairedRows {
    using Act = int8_t;
    static constexpr uint32_t kOffset = 0;
    static constexpr int kTokens = T, kRows = T <= 4 ? 8 : 4, kPairs = (T + 1) / 2, kSums = 2 * kPairs;
    static constexpr int64_t kColumns = kActBytes / kSums / kUnit * kUnit, kColumnActs = kSums, kActs = kSums * kColumns;
    static constexpr int64_t kLeastAhead = 8 << 10;

    // The order is [column / 8][kSums][8]. A token without another has zeros beside it.
    static void stage(const Staged& x, int64_t token, int64_t start, int64_t count, int8_t* acts) {
        __builtin_memset(acts, 0, static_cast<size_t>(whole(count, kUnit) * kSums));
        for (int t = 0; t < T; ++t) {
            const int8_t* from = x.codes + (token + t) * x.stride + start;
            for (int64_t i = 0; i < count; i += kDepth)  // the columns after the last one are zeros of Staged::codes
                __builtin_memcpy(acts + i * kSums + kDepth * t, from + i, kDepth);
        }
    }

    static void dot(const int8_t* const (&rows)[kRows], int64_t count, const int8_t* acts, int64_t ahead,
                    int32_t (*sums)[kSums]) {
        int32x4_t total[kRows / 2][kPairs];  // both tokens of one row, then of the other
        for (int r = 0; r < kRows / 2; ++r)
            for (int p = 0; p < kPairs; ++p) total[r][p] = vdupq_n_s32(0);
        for (int64_t i = 0; i < count; i += kUnit) {
            for (const int8_t* row : rows) __builtin_prefetch(row + i + ahead);
            for (int64_t j = i; j < i + kUnit; j += 2 * kDepth, acts += 2 * kDepth * kSums) {
                int8x16_t codes[2][kRows / 2];
                for (int r = 0; r < kRows / 2; ++r) {
                    const int64x2_t one = vreinterpretq_s64_s8(vld1q_s8(rows[2 * r] + j));
                    const int64x2_t other = vreinterpretq_s64_s8(vld1q_s8(rows[2 * r + 1] + j));
                    codes[0][r] = vreinterpretq_s8_s64(vzip1q_s64(one, other));
                    codes[1][r] = vreinterpretq_s8_s64(vzip2q_s64(one, other));
                }
#pragma GCC unroll 2
                for (int half = 0; half < 2; ++half)
#pragma GCC unroll 4
                    for (int p = 0; p < kPairs; ++p) {
                        const int8x16_t act = vld1q_s8(acts + half * kDepth * kSums + 2 * kDepth * p);
                        for (int r = 0; r < kRows / 2; ++r) total[r][p] = vmmlaq_s32(total[r][p], codes[half][r], act);
                    }
            }
        }
        for (int r = 0; r < kRows / 2; ++r)
            for (int p = 0; p < kPairs; ++p) {
                int32_t *one = &sums[2 * r][2 * p], *other = &sums[2 * r + 1][2 * p];
                vst1_s32(one, vadd_s32(vld1_s32(one), vget_low_s32(total[r][p])));
                vst1_s32(other, vadd_s32(vld1_s32(other), vget_high_s32(total[r][p])));
            }
    }
};

struct ByRows {
    template <int T>
    static void run(const Int8Matrix& w, const Staged& x, int64_t token, int64_t first, int64_t last, float* out,
                    int64_t stride) {
        by_rows<PairedRows<T>>(w, x, token, first, last, out, stride);
    }
};

}  // namespace

void int8_rows_neon_i8mm(const Int8Matrix& w, const Staged& x, int64_t first, int64_t last, float* out, int64_t stride) {
    // By columns, reordering eight stored rows takes as many instructions as the products save.
    if (!w.by_rows || x.tokens < kLeastPairTokens) return int8_rows_neon_dotprod(w, x, first, last, out, stride);
    int8_products<ByRows>(w, x, first, last, out, stride);
}

}  // namespace edgedec
