// Products of int8 matrices and int8 activations, exact in int32: the operands.
//
// The codes are those of the bundle, mapped from its file and never copied. They are stored in one of two orders:
//   by rows     [outputs][inputs], as bundles are written now: dot products along the columns, in one sequential read.
//   by columns  [inputs][outputs], as in linears of older bundles: a strip of outputs at a time, with eight stored rows side
//               by side, whose codes are reordered as they are read. Memory is slower in this order.
//
// Order of the float operations of one output, which is that of edgedec/reference/float_profile/ops/linear.py, so that
// results are equal to the bit:  float(exact int32 sum) * token scale * row scale + bias
#pragma once

#include <cstdint>

#include "products/ternary.hpp"

namespace edgedec {

// Maximum number of columns: (2^17 - 1) x 127 x 128 < 2^31, so that no int32 sum can overflow.
constexpr int64_t kMostInt8Inputs = (int64_t{1} << 17) - 1;
constexpr int64_t kPanel = 64;  // outputs that are reordered at a time if stored by columns, one cache line
constexpr int64_t kBlock = 64;  // outputs whose sums are kept at a time if stored by rows

struct Int8Matrix {
    int64_t outputs, inputs;
    bool by_rows;
    const int8_t* codes;  // [outputs][inputs] by rows, else [inputs][outputs]; -128 is allowed
    const float* scales;  // [outputs]
    const float* bias;    // [outputs], or null

    const char* problem() const;  // the reason why the sizes are invalid, or null
    // Returns the number of outputs that a thread computes at a time.
    int64_t part() const;
};

}  // namespace edgedec
