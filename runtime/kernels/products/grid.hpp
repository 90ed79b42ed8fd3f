// Products of matrices with evenly spaced levels (int4, and ternary planes with tied scales) and int8 activations: the
// operands.
//
// Layout. A *tile* is 16 output rows, as in ternary.hpp. A *block* is 32 columns of a tile, in four lines of 64 bytes with two
// codes of 4 bits in a byte: byte 4 * r + j of line l holds columns 8 * l + j (lower bits) and 8 * l + 4 + j of row r. Codes
// of 5 bits have their highest bit in a fifth line: bit m of its byte 4 * r + j belongs to column 4 * m + j of row r. Masking
// one kind of bits gives 16 rows x 4 columns in the order of byte dot products. Columns after the last one have code 0.
// The blocks of a tile are followed by its scales, in one of three forms:
//   kFloat    float32 [group][16]
//   kHalf     float16 [group][16]
//   kOffset   for each 8 groups: float16 factors [2][16], then uint8 steps [8][2][16]
// A tile has a multiple of 64 bytes, so that it is one sequential read.
//
// Order of the float operations of one output, for every path, number of tokens and number of threads, which is that of
// edgedec/reference/float_profile/ops/linear.py, so that results are equal to the bit:
//   total = 0; for each group: total += float(exact int32 sum of (code - zero) * x) * scale,
//   and with kOffset, whose zero is 0: total -= float(sum of x) * minimum;  total *= token scale;  += bias
// With kOffset, scale and minimum of a group are its two steps times the two factors, which is exact.
#pragma once

#include <cstdint>

#include "products/ternary.hpp"

namespace edgedec {

constexpr int64_t kBlockColumns = 32;  // columns of a block
constexpr int64_t kSharedGroups = 8;   // groups that share two factors
constexpr int64_t kSharedBytes = 2 * 2 * kTileRows + kSharedGroups * 2 * kTileRows;  // bytes of their factors and steps

enum ScaleForm : int32_t { kFloat = 0, kHalf = 1, kOffset = 2 };

struct Grid {
    int64_t outputs, inputs;
    int32_t bits, form, group_size;
    const uint8_t* data;
    const float* bias;  // [outputs], or null

    EDGEDEC_INLINE int64_t tiles() const { return (outputs + kTileRows - 1) / kTileRows; }
    EDGEDEC_INLINE int64_t blocks() const { return (inputs + kBlockColumns - 1) / kBlockColumns; }
    EDGEDEC_INLINE int64_t groups() const { return (inputs + group_size - 1) / group_size; }
    EDGEDEC_INLINE int64_t block_bytes() const { return kBlockColumns * kTileRows * bits / 8; }
    EDGEDEC_INLINE int64_t scale_bytes() const {
        if (form == kOffset) return (groups() + kSharedGroups - 1) / kSharedGroups * kSharedBytes;
        return groups() * kTileRows * (form == kHalf ? 2 : 4);
    }
    EDGEDEC_INLINE int64_t tile_bytes() const { return (blocks() * block_bytes() + scale_bytes() + 63) / 64 * 64; }
    EDGEDEC_INLINE int64_t bytes() const { return tiles() * tile_bytes(); }
    EDGEDEC_INLINE int32_t zero() const { return form == kOffset ? 0 : bits == 5 ? 13 : 8; }
    const char* problem() const;  // the reason why the sizes are invalid, or null
};

}  // namespace edgedec
