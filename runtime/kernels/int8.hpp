// int8 matrices times int8 activations, exact in int32: what is multiplied.
//
// The codes are those of the bundle, mapped from its file and never copied. They lie there in one of two orders:
//   by rows     [outputs][inputs], as bundles are written: dot products along the columns, one sequential read.
//   by columns  [inputs][outputs], as linears of older bundles do: a strip of outputs at a time, eight stored rows side by side,
//               whose codes are put in order as they are read. Memory is slower that way.
//
// Order of the float operations of one output (that of edgedec/reference/float_profile/ops/linear.py, so that results
// are equal to the bit):  float(exact int32 sum) * token scale * row scale + bias
#pragma once

#include <cstdint>

#include "ternary.hpp"

namespace edgedec {

// 2^17 - 1 columns x 127 x 128 < 2^31: no int32 sum can overflow.
constexpr int64_t kMostInt8Inputs = (int64_t{1} << 17) - 1;
constexpr int64_t kPanel = 64;  // by columns: outputs that are put in order at once, a line of the cache
constexpr int64_t kBlock = 64;  // by rows: outputs whose sums are kept at once

struct Int8Matrix {
    int64_t outputs, inputs;
    bool by_rows;
    const int8_t* codes;  // [outputs][inputs] by rows, else [inputs][outputs]; -128 is right too
    const float* scales;  // [outputs]
    const float* bias;    // [outputs], or null

    const char* problem() const;  // why the sizes are impossible, or null
    // Outputs that a thread takes at a time.
    int64_t part() const;
};

}  // namespace edgedec
