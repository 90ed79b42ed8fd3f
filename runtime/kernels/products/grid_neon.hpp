// The codes of NEON's paths: 4 rows x 4 columns of a line at a time.
#pragma once

#include <arm_neon.h>

#define EDGEDEC_NEON
#include "products/grid_tile.hpp"

namespace edgedec {
namespace {

// Returns the lower (0) or upper (1) four bits of each byte.
EDGEDEC_INLINE uint8x16_t half_of(uint8x16_t line, int half) {
    return half ? vshrq_n_u8(line, 4) : vandq_u8(line, vdupq_n_u8(15));
}

// Returns codes of 4 bits with bit `bit` of each byte of `highest` as their fifth.
EDGEDEC_INLINE uint8x16_t with_highest(uint8x16_t codes, uint8x16_t highest, int bit) {
    return vbslq_u8(vdupq_n_u8(16), vshlq_u8(highest, vdupq_n_s8(static_cast<int8_t>(4 - bit))), codes);
}

// Returns codes 4 * four to 4 * four + 3 of 4 rows of the block at `block`, which points to the rows' bytes of its first line.
template <int kBits>
EDGEDEC_INLINE int8x16_t four_codes(const uint8_t* block, int four) {
    uint8x16_t codes = half_of(vld1q_u8(block + four / 2 * kLineBytes), four % 2);
    if (kBits == 5) codes = with_highest(codes, vld1q_u8(block + 4 * kLineBytes), four);
    return vreinterpretq_s8_u8(codes);
}

}  // namespace
}  // namespace edgedec
