// The codes of NEON's paths: 4 rows x 4 columns of a line at a time.
#pragma once

#include <arm_neon.h>

#define EDGEDEC_GRID_NEON
#include "grid_tile.hpp"

namespace edgedec {
namespace {

// Returns codes 4 * four to 4 * four + 3 of 4 rows of the block at `block`, which points to the rows' bytes of its first line.
template <int kBits>
EDGEDEC_INLINE int8x16_t four_codes(const uint8_t* block, int four) {
    const uint8x16_t line = vld1q_u8(block + four / 2 * kLineBytes);
    uint8x16_t codes = four % 2 ? vshrq_n_u8(line, 4) : vandq_u8(line, vdupq_n_u8(15));
    if (kBits == 5) {
        const uint8x16_t highest = vld1q_u8(block + 4 * kLineBytes);
        const uint8x16_t bit = vshlq_u8(highest, vdupq_n_s8(static_cast<int8_t>(4 - four)));
        codes = vorrq_u8(codes, vandq_u8(bit, vdupq_n_u8(16)));
    }
    return vreinterpretq_s8_u8(codes);
}

}  // namespace
}  // namespace edgedec
