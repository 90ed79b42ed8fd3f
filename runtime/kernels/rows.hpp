// Operations on rows of float32 activations: the RMS norm and gated activations.
//
// Order of the float operations, on every path (fma has one rounding):
//   norm: part[j] = fma chain of x[i] * x[i] over i = j, j + 16, j + 32 ..., from 0;  part[j] += part[j + 8], then + 4, + 2 and
//   + 1;  factor = 1 / sqrt(part[0] / width + eps);  out[i] = x[i] * factor * gain[i]
//   gated activation, element by element: the functions of rows_tile.hpp
#pragma once

#include <cstdint>

#include "ternary.hpp"

namespace edgedec {

constexpr int64_t kNormParts = 16;               // partial sums of a norm
constexpr int64_t kMostWidth = int64_t{1} << 24;  // maximum number of columns

// The activations of GatedActivation, in the order of their numbers in the operator's attribute.
enum class Activation : int32_t { silu = 0, relu2 = 1, gelu_tanh = 2 };
constexpr int32_t kActivations = 3;

}  // namespace edgedec
