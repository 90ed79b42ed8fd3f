// The loops around the dot product of a path, and the parts for which the compiler's vectors suffice. Each path's file includes
// this once and compiles it with its own instructions. Everything is local, and no inline function of the standard library is
// used, because the linker would keep only one of several copies, perhaps one with instructions that this CPU lacks.
#pragma once

#include "products/half.hpp"
#include "products/ternary.hpp"

namespace edgedec {
namespace {

// Vectors of GCC and Clang, whose operations are element by element. Without them the compiler handles 16 rows one by one.
#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif
constexpr int kVectors = kTileRows / kLanes;
typedef float Floats __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));

// Distances of prefetches in bytes, into the L2 cache and into the L1 cache. The processor itself does not prefetch across
// pages of 4 KiB. An address after the end of the codes is harmless.
constexpr int64_t kFar = 8192, kNear = 256;

// Converts 16 values of float16.
EDGEDEC_INLINE void read_halves(const uint8_t* from, Floats* to) {
#if defined(__AVX512F__)
    to[0] = reinterpret_cast<Floats>(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
#elif defined(__AVX2__) && defined(__F16C__)
    for (int v = 0; v < kVectors; ++v)
        to[v] = reinterpret_cast<Floats>(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from) + v)));
#elif defined(EDGEDEC_NEON)  // set by the files of NEON's paths, because the scalar path has no vectors
    for (int v = 0; v < kVectors; ++v)
        to[v] = reinterpret_cast<Floats>(
            vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(reinterpret_cast<const uint16_t*>(from) + 4 * v))));
#else
    float values[kTileRows];
    for (int i = 0; i < kTileRows; ++i) {
        uint16_t half;
        __builtin_memcpy(&half, from + 2 * i, sizeof half);
        values[i] = from_half(half);
    }
    __builtin_memcpy(to, values, sizeof values);
#endif
}

// Prefetches the lines that are read after `line`.
EDGEDEC_INLINE void prefetch_line(const uint8_t* line, int64_t far = kFar, int64_t near = kNear) {
    __builtin_prefetch(line + far, 0, 2);
    __builtin_prefetch(line + near, 0, 3);
}

// Returns the codes of the activations in an order.
EDGEDEC_INLINE const int8_t* codes_in(Order order, const Staged& x) {
    return order == Order::rows ? x.codes : order == Order::fours ? x.fours : x.pairs;
}

// Returns the bytes of a column of T tokens in an order.
constexpr int64_t column_bytes(Order order, int tokens) {
    return order == Order::rows ? 1 : order == Order::fours ? tokens : tokens + tokens % 2;
}

// dot.run<T>(line, count, x, stride, sums) computes the exact sums of `count` lines with T tokens, int32 [T][16]. x has the order
// Dot::kOrder; tokens in rows have a distance of `stride` bytes. With Dot::kRagged, there are only dot.tokens tokens, at most T.
template <int T, class Dot>
void sweep(const Ternary& w, const Staged& x, int64_t tile, int64_t first, float* out, int64_t stride, Dot& dot) {
    int tokens = T;
    if constexpr (Dot::kRagged) tokens = dot.tokens;
    const int64_t lines = w.lines(), groups = w.groups();
    const int64_t group_lines = w.group_size ? w.group_size / kLineColumns : lines;
    const uint8_t *line = w.codes + tile * w.tile_bytes(), *scales = nullptr;
    Floats total[T][kVectors] = {};
    for (int32_t plane = 0; plane < w.planes; ++plane) {
        const int8_t* codes = codes_in(Dot::kOrder, x) + first * x.stride;
        int64_t left = lines;
        for (int64_t group = 0; group < groups; ++group) {
            const int64_t count = left < group_lines ? left : group_lines;
            if (w.group_size) {
                if (w.half_scales && group % 2) {
                    scales += kLineBytes / 2;
                } else {
                    prefetch_line(line);
                    scales = line;
                    line += kLineBytes;
                }
            }
            alignas(64) int32_t sums[T][kTileRows];
            dot.template run<T>(line, count, codes, x.stride, sums);
            Floats factor[kVectors];
            if (w.half_scales)
                read_halves(scales, factor);
            else
                for (int v = 0; v < kVectors; ++v)
                    factor[v] = w.group_size ? reinterpret_cast<const Floats*>(scales)[v] : Floats{} + *w.scale;
            for (int t = 0; t < tokens; ++t) {
                const int32_t offset = x.sums[(first + t) * groups + group];
                for (int v = 0; v < kVectors; ++v) {
                    const Ints exact = reinterpret_cast<const Ints*>(sums[t])[v] - offset;
                    total[t][v] += __builtin_convertvector(exact, Floats) * factor[v];
                }
            }
            line += count * kLineBytes;
            codes += count * kLineColumns * column_bytes(Dot::kOrder, T);
            left -= count;
        }
    }
    const int64_t row0 = tile * kTileRows;
    const int rows = static_cast<int>(w.outputs - row0 < kTileRows ? w.outputs - row0 : kTileRows);
    for (int t = 0; t < tokens; ++t) {
        float* to = out + (first + t) * stride + row0;
        Floats scaled[kVectors];
        for (int v = 0; v < kVectors; ++v) scaled[v] = total[t][v] * x.scales[first + t];
        if (rows == kTileRows && !w.bias) {
            for (int v = 0; v < kVectors; ++v) reinterpret_cast<Floats*>(to)[v] = scaled[v];
            continue;
        }
        const float* value = reinterpret_cast<const float*>(scaled);
        for (int row = 0; row < rows; ++row) to[row] = w.bias ? value[row] + w.bias[row0 + row] : value[row];
    }
}

// Computes all tokens, eight at a time. From the second eight on, the lines of the tile are in the cache.
template <class Dot>
void sweep_all(const Ternary& w, const Staged& x, int64_t tile, float* out, int64_t stride) {
    int64_t first = 0;
    Dot dot;
    for (; x.tokens - first >= kTokens; first += kTokens) sweep<kTokens>(w, x, tile, first, out, stride, dot);
    switch (x.tokens - first) {
        case 1: return sweep<1>(w, x, tile, first, out, stride, dot);
        case 2: return sweep<2>(w, x, tile, first, out, stride, dot);
        case 3: return sweep<3>(w, x, tile, first, out, stride, dot);
        case 4: return sweep<4>(w, x, tile, first, out, stride, dot);
        case 5: return sweep<5>(w, x, tile, first, out, stride, dot);
        case 6: return sweep<6>(w, x, tile, first, out, stride, dot);
        case 7: return sweep<7>(w, x, tile, first, out, stride, dot);
        default: return;
    }
}

inline void quantize_token(const float* x, int64_t columns, int8_t* codes, int64_t stride, float* scale) {
    // Without the sign bit, the order of floats is that of their bits, and NaN is larger than infinity.
    int32_t largest = 0;
    for (int64_t i = 0; i < columns; ++i) {
        int32_t bits;
        __builtin_memcpy(&bits, x + i, sizeof bits);
        bits &= 0x7fffffff;
        largest = bits > largest ? bits : largest;
    }
    float absmax;
    __builtin_memcpy(&absmax, &largest, sizeof absmax);
    __builtin_memset(codes + columns, 0, static_cast<size_t>(stride - columns));
    if (largest >= 0x7f800000) {
        *scale = __builtin_nanf("");
        __builtin_memset(codes, 0, static_cast<size_t>(columns));
        return;
    }
    *scale = absmax / 127.0f;
    if (!(*scale > 0.0f)) {  // all values are 0, or so small that the scale underflows
        __builtin_memset(codes, 0, static_cast<size_t>(columns));
        return;
    }
    // Adding 1.5 x 2^23 leaves no bit for a fraction, so the sum is rounded half to even, as by NumPy's rint.
    constexpr float kRound = 12582912.0f;
    const float divisor = *scale;
    for (int64_t i = 0; i < columns; ++i) {
        float value = x[i] / divisor;
        // A denormal scale has few bits, so that a code could exceed 127.
        value = value > 127.0f ? 127.0f : value;
        value = value < -127.0f ? -127.0f : value;
        const float rounded = value + kRound;
        int32_t bits;
        __builtin_memcpy(&bits, &rounded, sizeof bits);
        codes[i] = static_cast<int8_t>(bits);  // the last byte is the integer in two's complement
    }
}

inline void sum_groups(const int8_t* codes, int64_t columns, int64_t group_size, int32_t* sums) {
    const int64_t size = group_size ? group_size : columns;
    for (int64_t start = 0; start < columns; start += size) {
        const int64_t stop = start + size < columns ? start + size : columns;
        int32_t sum = 0;
        for (int64_t i = start; i < stop; ++i) sum += codes[i];
        *sums++ = sum;
    }
}

}  // namespace
}  // namespace edgedec

// Defines the functions of a path for the table in dispatch.cpp.
#define EDGEDEC_DEFINE_PATH(name)                                                                                   \
    namespace edgedec {                                                                                             \
    void tile_##name(const Ternary& w, const Staged& x, int64_t tile, float* out, int64_t stride) {                 \
        sweep_all<Dot>(w, x, tile, out, stride);                                                                    \
    }                                                                                                               \
    void quantize_##name(const float* x, int64_t columns, int8_t* codes, int64_t stride, float* scale) {            \
        quantize_token(x, columns, codes, stride, scale);                                                           \
    }                                                                                                               \
    void sum_##name(const int8_t* codes, int64_t columns, int64_t group_size, int32_t* sums) {                      \
        sum_groups(codes, columns, group_size, sums);                                                               \
    }                                                                                                               \
    }  // namespace edgedec
