// Operations on rows of float32 activations: the RMS norm, gated activations and the Walsh-Hadamard transform.
//
// Order of the float operations, on every path (fma has one rounding):
//   norm: part[j] = fma chain of x[i] * x[i] over i = j, j + 16, j + 32 ..., from 0;  part[j] += part[j + 8], then + 4, + 2 and
//   + 1;  factor = 1 / sqrt(part[0] / width + eps);  out[i] = x[i] * factor * gain[i]
//   gated activation, element by element: the functions of rows_tile.hpp
//   transform of a block: out[i] = x[i] * signs[i];  for distance = 1, 2, 4, ..., block / 2: the values a and b of each two
//   columns at this distance become a + b and a - b;  out[i] *= 1 / sqrt(block).  The inverse multiplies by the signs last.
#pragma once

#include <cstdint>

#include "products/ternary.hpp"

namespace edgedec {

constexpr int64_t kNormParts = 16;               // partial sums of a norm
constexpr int64_t kMostWidth = int64_t{1} << 24;  // maximum number of columns
constexpr int64_t kMostBlock = int64_t{1} << 16;  // maximum number of columns of a block of the transform

// The activations of GatedActivation, in the order of their numbers in the operator's attribute.
enum class Activation : int32_t { silu = 0, relu2 = 1, gelu_tanh = 2, sigmoid = 3, tanh = 4 };
constexpr int32_t kActivations = 5;

}  // namespace edgedec
