// Exponentials over the vectors of a path. Each path's file compiles it with its own instructions; as in ternary_tile.hpp everything
// is local, and nothing of the standard library is used.
//
// Lanes provides: kWidth floats in a Type (kWidth divides 16), load and store of floats, broadcast, fma (one rounding), mul, div, add,
// sub, min and max (the second operand if either is NaN), and times_power(y, z) = y * 2^n, where z = n + kMagic. For attention it also
// provides what attention_tile.hpp says.
#pragma once

#include "products/ternary.hpp"

namespace edgedec {
namespace {

constexpr float kMagic = 12582912.0f;   // 1.5 * 2^23: adding it rounds to an integer, which is then in the low bits

// Computes e^x = 2^n * (1 + r + y * r^2) and returns n + kMagic. |x| must be at most 87.
// Source: the polynomial of Cephes' expf; n = round(x / ln 2) by addition of kMagic, derived here.
template <class Lanes>
EDGEDEC_INLINE typename Lanes::Type parts_of_exp(typename Lanes::Type x, typename Lanes::Type& r, typename Lanes::Type& y) {
    const auto z = Lanes::fma(x, Lanes::broadcast(1.44269504088896341f), Lanes::broadcast(kMagic));
    const auto n = Lanes::sub(z, Lanes::broadcast(kMagic));
    r = Lanes::fma(n, Lanes::broadcast(-0.693359375f), x);
    r = Lanes::fma(n, Lanes::broadcast(2.12194440e-4f), r);
    y = Lanes::broadcast(1.9875691500e-4f);
    y = Lanes::fma(y, r, Lanes::broadcast(1.3981999507e-3f));
    y = Lanes::fma(y, r, Lanes::broadcast(8.3334519073e-3f));
    y = Lanes::fma(y, r, Lanes::broadcast(4.1665795894e-2f));
    y = Lanes::fma(y, r, Lanes::broadcast(1.6666665459e-1f));
    y = Lanes::fma(y, r, Lanes::broadcast(5.0000001201e-1f));
    return z;
}

// Returns exp(x) for x <= 0; below -87 the result is exp(-87). Relative error 1e-7. -inf and NaN give NaN.
template <class Lanes>
EDGEDEC_INLINE typename Lanes::Type exp_of(typename Lanes::Type x) {
    typename Lanes::Type r, y;
    const auto z = parts_of_exp<Lanes>(Lanes::max(Lanes::broadcast(-87.0f), x), r, y);
    y = Lanes::fma(y, Lanes::mul(r, r), Lanes::add(r, Lanes::broadcast(1.0f)));
    // x - x is 0 or NaN. It restores a NaN that times_power may have turned into a number.
    return Lanes::add(Lanes::times_power(y, z), Lanes::sub(x, x));
}

// Returns cap * tanh(x / cap), where `twice` is 2 / cap. Relative error 3e-7; NaN stays NaN.
// tanh(u) = e / (e + 2) with e = exp(2 u) - 1, summed so that small values keep their digits; beyond 9, tanh is 1 in float32.
template <class Lanes>
EDGEDEC_INLINE typename Lanes::Type cap_of(typename Lanes::Type x, float cap, float twice) {
    auto u = Lanes::mul(x, Lanes::broadcast(twice));
    u = Lanes::max(Lanes::broadcast(-18.0f), Lanes::min(Lanes::broadcast(18.0f), u));
    typename Lanes::Type r, y;
    const auto z = parts_of_exp<Lanes>(u, r, y);
    const auto power = Lanes::times_power(Lanes::broadcast(1.0f), z);
    const auto e = Lanes::fma(power, Lanes::fma(y, Lanes::mul(r, r), r), Lanes::sub(power, Lanes::broadcast(1.0f)));
    return Lanes::mul(Lanes::broadcast(cap), Lanes::div(e, Lanes::add(e, Lanes::broadcast(2.0f))));
}

}  // namespace
}  // namespace edgedec
