// Vectors of one float, for the scalar path.
#pragma once

#include "attention/attention_tile.hpp"
#include "products/half.hpp"
#include "rows/rows_tile.hpp"

namespace edgedec {
namespace {

struct Scalar {
    using Type = float;
    static constexpr int64_t kWidth = 1;
    static constexpr int kRowsAtOnce = 1;
    static constexpr int kSums = 1;
    static Type load(const float* x) { return *x; }
    static Type load(const uint16_t* x) { return from_half(*x); }
    static Type load(const int8_t* x) { return *x; }
    static Type load(NibblePlace x) { return x.code(); }
    static float one(const float* x) { return *x; }
    static float one(const uint16_t* x) { return from_half(*x); }
    static float one(const int8_t* x) { return *x; }
    static float one(NibblePlace x) { return x.code(); }
    static void store(float* to, Type x) { *to = x; }
    static void store_half(uint16_t* to, Type x) { *to = to_half(x); }
    static Type broadcast(float x) { return x; }
    static Type fma(Type a, Type b, Type c) { return __builtin_fmaf(a, b, c); }
    static Type mul(Type a, Type b) { return a * b; }
    static Type div(Type a, Type b) { return a / b; }
    static Type add(Type a, Type b) { return a + b; }
    static Type sub(Type a, Type b) { return a - b; }
    static Type min(Type a, Type b) { return a < b ? a : b; }
    static Type max(Type a, Type b) { return a > b ? a : b; }
    static Type times_power(Type y, Type z) {
        uint32_t bits, power;
        __builtin_memcpy(&bits, &y, 4);
        __builtin_memcpy(&power, &z, 4);
        bits += power << 23;
        __builtin_memcpy(&y, &bits, 4);
        return y;
    }
};

}  // namespace
}  // namespace edgedec
