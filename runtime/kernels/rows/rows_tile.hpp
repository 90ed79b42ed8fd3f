// The loops of rows.hpp over the vectors of a path, which exp_tile.hpp describes. Each path's file includes this once and compiles it
// with its own instructions.
#pragma once

#include "rows/exp_tile.hpp"
#include "rows/rows.hpp"

namespace edgedec {
namespace {

// Returns exp(x), where x is between -87 and 87 or NaN.
template <class Lanes>
EDGEDEC_INLINE typename Lanes::Type exp_between(typename Lanes::Type x) {
    typename Lanes::Type r, y;
    const auto z = parts_of_exp<Lanes>(x, r, y);
    y = Lanes::fma(y, Lanes::mul(r, r), Lanes::add(r, Lanes::broadcast(1.0f)));
    return Lanes::add(Lanes::times_power(y, z), Lanes::sub(x, x));  // NaN stays NaN, as in exp_of
}

// Returns 1 + exp(-gate). Beyond 87, the exponential is that of 87: the reciprocal is then less than 1e-35.
template <class Lanes>
EDGEDEC_INLINE typename Lanes::Type one_plus_exp(typename Lanes::Type gate) {
    auto x = Lanes::sub(Lanes::broadcast(0.0f), gate);
    x = Lanes::max(Lanes::broadcast(-87.0f), Lanes::min(Lanes::broadcast(87.0f), x));
    return Lanes::add(Lanes::broadcast(1.0f), exp_between<Lanes>(x));
}

template <class Lanes>
EDGEDEC_INLINE typename Lanes::Type silu_of(typename Lanes::Type gate) {
    return Lanes::div(gate, one_plus_exp<Lanes>(gate));
}

template <class Lanes>
EDGEDEC_INLINE typename Lanes::Type sigmoid_of(typename Lanes::Type gate) {
    return Lanes::div(Lanes::broadcast(1.0f), one_plus_exp<Lanes>(gate));
}

// Returns gate / 2 * (1 + tanh(sqrt(2 / pi) * (gate + 0.044715 * gate^3))).
template <class Lanes>
EDGEDEC_INLINE typename Lanes::Type gelu_of(typename Lanes::Type gate) {
    const auto cube = Lanes::mul(Lanes::mul(Lanes::mul(Lanes::broadcast(0.044715f), gate), gate), gate);
    const auto inner = Lanes::mul(Lanes::broadcast(0.797884583f), Lanes::add(gate, cube));
    const auto bent = Lanes::add(Lanes::broadcast(1.0f), cap_of<Lanes>(inner, 1.0f, 2.0f));
    return Lanes::mul(Lanes::mul(gate, Lanes::broadcast(0.5f)), bent);
}

template <class Lanes>
EDGEDEC_INLINE typename Lanes::Type relu2_of(typename Lanes::Type gate) {
    const auto positive = Lanes::max(Lanes::broadcast(0.0f), gate);
    return Lanes::mul(positive, positive);
}

// Computes activation(gate) * up for whole vectors, and for the last elements in a copy.
template <class Lanes, class Body>
void gate_with(const float* gate, const float* up, int64_t count, float* out, Body activation) {
    constexpr int64_t kWidth = Lanes::kWidth;
    int64_t i = 0;
    for (; i + kWidth <= count; i += kWidth)
        Lanes::store(out + i, Lanes::mul(activation(Lanes::load(gate + i)), Lanes::load(up + i)));
    if (i == count) return;
    float gates[kWidth] = {}, ups[kWidth] = {};
    __builtin_memcpy(gates, gate + i, static_cast<size_t>(count - i) * sizeof(float));
    __builtin_memcpy(ups, up + i, static_cast<size_t>(count - i) * sizeof(float));
    Lanes::store(ups, Lanes::mul(activation(Lanes::load(gates)), Lanes::load(ups)));
    __builtin_memcpy(out + i, ups, static_cast<size_t>(count - i) * sizeof(float));
}

template <class Lanes>
void gate_rows(int32_t activation, const float* gate, const float* up, int64_t count, float* out) {
    using Type = typename Lanes::Type;
    switch (static_cast<Activation>(activation)) {
        case Activation::silu: return gate_with<Lanes>(gate, up, count, out, [](Type x) { return silu_of<Lanes>(x); });
        case Activation::relu2: return gate_with<Lanes>(gate, up, count, out, [](Type x) { return relu2_of<Lanes>(x); });
        case Activation::gelu_tanh: return gate_with<Lanes>(gate, up, count, out, [](Type x) { return gelu_of<Lanes>(x); });
        case Activation::sigmoid: return gate_with<Lanes>(gate, up, count, out, [](Type x) { return sigmoid_of<Lanes>(x); });
        case Activation::tanh: return gate_with<Lanes>(gate, up, count, out, [](Type x) { return cap_of<Lanes>(x, 1.0f, 2.0f); });
    }
}

template <class Lanes>
void norm_row(const float* x, const float* gain, int64_t width, float eps, float* out) {
    constexpr int64_t kVectors = kNormParts / Lanes::kWidth;
    typename Lanes::Type sums[kVectors];
    for (int64_t v = 0; v < kVectors; ++v) sums[v] = Lanes::broadcast(0.0f);
    const auto add = [&](const float* from) {
        for (int64_t v = 0; v < kVectors; ++v) {
            const auto value = Lanes::load(from + v * Lanes::kWidth);
            sums[v] = Lanes::fma(value, value, sums[v]);
        }
    };
    int64_t i = 0;
    for (; i + kNormParts <= width; i += kNormParts) add(x + i);
    if (i < width) {
        float rest[kNormParts] = {};
        __builtin_memcpy(rest, x + i, static_cast<size_t>(width - i) * sizeof(float));
        add(rest);
    }
    float parts[kNormParts];
    for (int64_t v = 0; v < kVectors; ++v) Lanes::store(parts + v * Lanes::kWidth, sums[v]);
    for (int64_t half = kNormParts / 2; half; half /= 2)
        for (int64_t j = 0; j < half; ++j) parts[j] += parts[j + half];
    const float factor = 1.0f / __builtin_sqrtf(parts[0] / static_cast<float>(width) + eps);
    for (i = 0; i < width; ++i) out[i] = x[i] * factor * gain[i];
}

// Replaces the values a and b of each two columns at `Distance` by a + b and a - b. The compiler makes vectors of the constant
// loops, with shuffles for short distances.
template <int64_t Distance>
EDGEDEC_INLINE void butterflies(float* __restrict x, int64_t count) {
    for (int64_t i = 0; i < count; i += 2 * Distance)
        for (int64_t j = i; j < i + Distance; ++j) {
            const float a = x[j], b = x[j + Distance];
            x[j] = a + b, x[j + Distance] = a - b;
        }
}

// The same for a distance that is a multiple of the vectors' width, and for twice this distance, so that values are read once
// for both. `count` is a multiple of four times the distance.
template <class Lanes>
void two_butterflies(float* x, int64_t count, int64_t distance) {
    for (int64_t i = 0; i < count; i += 4 * distance)
        for (int64_t j = i; j < i + distance; j += Lanes::kWidth) {
            const auto a = Lanes::load(x + j), b = Lanes::load(x + j + distance);
            const auto c = Lanes::load(x + j + 2 * distance), d = Lanes::load(x + j + 3 * distance);
            const auto ab = Lanes::add(a, b), a_b = Lanes::sub(a, b), cd = Lanes::add(c, d), c_d = Lanes::sub(c, d);
            Lanes::store(x + j, Lanes::add(ab, cd));
            Lanes::store(x + j + distance, Lanes::add(a_b, c_d));
            Lanes::store(x + j + 2 * distance, Lanes::sub(ab, cd));
            Lanes::store(x + j + 3 * distance, Lanes::sub(a_b, c_d));
        }
}

// Computes the transform of one block.
template <class Lanes>
void transform_block(const float* x, const float* signs, int64_t block, bool inverse, float* out) {
    if (inverse)
        __builtin_memcpy(out, x, static_cast<size_t>(block) * sizeof(float));
    else
        for (int64_t i = 0; i < block; ++i) out[i] = x[i] * signs[i];
    butterflies<1>(out, block);
    if (block > 2) butterflies<2>(out, block);
    if (block > 4) butterflies<4>(out, block);
    if (block > 8) butterflies<8>(out, block);
    int64_t distance = 16;
    for (; 4 * distance <= block; distance *= 4) two_butterflies<Lanes>(out, block, distance);
    if (distance < block)
        for (int64_t j = 0; j < distance; j += Lanes::kWidth) {  // the last distance, which is half of the block
            const auto a = Lanes::load(out + j), b = Lanes::load(out + j + distance);
            Lanes::store(out + j, Lanes::add(a, b));
            Lanes::store(out + j + distance, Lanes::sub(a, b));
        }
    const float factor = static_cast<float>(1.0 / __builtin_sqrt(static_cast<double>(block)));
    for (int64_t i = 0; i < block; ++i) out[i] *= factor;
    if (inverse)
        for (int64_t i = 0; i < block; ++i) out[i] *= signs[i];
}

}  // namespace
}  // namespace edgedec

// Defines the functions of a path for the table in dispatch.cpp.
#define EDGEDEC_DEFINE_ROWS(name, Lanes)                                                                          \
    namespace edgedec {                                                                                           \
    void norm_##name(const float* x, const float* gain, int64_t width, float eps, float* out) {                   \
        norm_row<Lanes>(x, gain, width, eps, out);                                                                \
    }                                                                                                             \
    void gate_##name(int32_t activation, const float* gate, const float* up, int64_t count, float* out) {         \
        gate_rows<Lanes>(activation, gate, up, count, out);                                                       \
    }                                                                                                             \
    void transform_##name(const float* x, const float* signs, int64_t block, bool inverse, float* out) {          \
        transform_block<Lanes>(x, signs, block, inverse, out);                                                    \
    }                                                                                                             \
    }  // namespace edgedec
