// Matrix products of Armv8.6 (FEAT_I8MM): smmla multiplies 2 tokens x 8 columns by 2 rows x 8 columns and adds them to 2 x 2 sums
// in int32.
//
// A vector of codes has 4 rows x 4 columns (ternary.hpp, grid.hpp). Two of them, 16 columns apart, are zipped to two vectors of
// 2 rows x 8 columns, which is why Staged::pairs has these columns side by side.
#pragma once

#include <arm_neon.h>

#define EDGEDEC_NEON

#include "products/ternary.hpp"

namespace edgedec {
namespace {

// Registers with 2 rows x 8 columns in bytes: rows 0 and 1, and rows 2 and 3, of a quarter of a line.
struct RowPairs {
    uint8x16_t rows[2];
};

// Zips the bytes of 4 rows x 4 columns with those of the columns that are multiplied along with them.
EDGEDEC_INLINE RowPairs zip_rows(uint8x16_t first, uint8x16_t second) {
    const uint32x4_t a = vreinterpretq_u32_u8(first), b = vreinterpretq_u32_u8(second);
    return {{vreinterpretq_u8_u32(vzip1q_u32(a, b)), vreinterpretq_u8_u32(vzip2q_u32(a, b))}};
}

// The sums of T tokens and kQuarters quarters of a tile's rows.
template <int T, int kQuarters>
class PairSums {
  public:
    static constexpr int kPairs = (T + 1) / 2;

    // Begins with start[t] for each row.
    EDGEDEC_INLINE explicit PairSums(const int32_t* start) {
        for (int p = 0; p < kPairs; ++p) {
            const int32_t one = start[2 * p], other = 2 * p + 1 < T ? start[2 * p + 1] : 0;
            const int32x4_t both = vcombine_s32(vdup_n_s32(one), vdup_n_s32(other));
            for (int q = 0; q < kQuarters; ++q) total_[p][q][0] = total_[p][q][1] = both;
        }
    }

    // Adds the products of eight columns; x points to their codes of all pairs.
    EDGEDEC_INLINE void add(const RowPairs (&codes)[kQuarters], const int8_t* x) {
#pragma GCC unroll 4
        for (int p = 0; p < kPairs; ++p) {
            const int8x16_t act = vld1q_s8(x + 16 * p);
            for (int q = 0; q < kQuarters; ++q)
                for (int h = 0; h < 2; ++h)
                    total_[p][q][h] = vmmlaq_s32(total_[p][q][h], act, vreinterpretq_s8_u8(codes[q].rows[h]));
        }
    }

    // Keeps the compiler from loading and unpacking more before the last products are computed. With many tokens GCC would
    // otherwise work so far ahead that it spills sums. `codes` are those that are unpacked next.
    EDGEDEC_INLINE void keep_order(RowPairs (&codes)[kQuarters]) {
        asm volatile("" : "+w"(total_[0][0][0]) : : "memory");
        for (RowPairs& pairs : codes)
            for (uint8x16_t& rows : pairs.rows) asm volatile("" : "+w"(rows));
    }

    // Stores the sums of the quarters from `quarter` on.
    EDGEDEC_INLINE void store(int quarter, int32_t (*sums)[kTileRows]) const {
        for (int p = 0; p < kPairs; ++p)
            for (int q = 0; q < kQuarters; ++q) {
                const int64x2_t low = vreinterpretq_s64_s32(total_[p][q][0]), high = vreinterpretq_s64_s32(total_[p][q][1]);
                const int at = 4 * (quarter + q);
                vst1q_s32(&sums[2 * p][at], vreinterpretq_s32_s64(vzip1q_s64(low, high)));
                if (2 * p + 1 < T) vst1q_s32(&sums[2 * p + 1][at], vreinterpretq_s32_s64(vzip2q_s64(low, high)));
            }
    }

  private:
    int32x4_t total_[kPairs][kQuarters][2];
};

}  // namespace
}  // namespace edgedec
