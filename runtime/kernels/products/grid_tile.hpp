// The loops around the dot product of a path for matrices with evenly spaced levels. Each path's file includes this once and
// compiles it with its own instructions; everything is local, as in ternary_tile.hpp.
//
// Dot::run<T, kBits>(block, count, x, stride, start, sums) computes start[t] plus the exact sums of code * x of `count` blocks
// with T tokens, int32 [T][16]. x has the order Dot::kOrder; tokens in rows have a distance of `stride` bytes.
#pragma once

#include "products/grid.hpp"
#include "products/ternary_tile.hpp"

namespace edgedec {
namespace {

typedef uint8_t Bytes __attribute__((vector_size(kLanes), aligned(1), may_alias));

// Prefetches the lines that are read after `line`. Codes of 5 bits were slower with the distances of ternary matrices.
EDGEDEC_INLINE void prefetch_codes(const uint8_t* line) { prefetch_line(line, 2 * kFar, 2 * kNear); }

// Reads the scales of a group, and its minima if the form has them.
EDGEDEC_INLINE void read_scales(const Grid& w, const uint8_t* scales, int64_t group, Floats* scale, Floats* minimum) {
    if (w.form == kHalf) return read_halves(scales + group * 2 * kTileRows, scale);
    if (w.form == kFloat) {
        __builtin_memcpy(scale, scales + group * 4 * kTileRows, sizeof(Floats) * kVectors);
        return;
    }
    const uint8_t* factors = scales + group / kSharedGroups * kSharedBytes;
    const uint8_t* steps = factors + 4 * kTileRows + group % kSharedGroups * 2 * kTileRows;
    Floats* const made[] = {scale, minimum};
    for (Floats* to : made) {
        read_halves(factors, to);
        for (int v = 0; v < kVectors; ++v)
            to[v] *= __builtin_convertvector(
                __builtin_convertvector(reinterpret_cast<const Bytes*>(steps)[v], Ints), Floats);
        factors += 2 * kTileRows, steps += kTileRows;
    }
}

// Writes the rows of a tile of one token, from their sums over all groups on.
EDGEDEC_INLINE void write_rows(const Grid& w, const Staged& x, int64_t tile, int64_t token, const Floats* total, float* out,
                               int64_t stride) {
    const int64_t row0 = tile * kTileRows;
    const int rows = static_cast<int>(w.outputs - row0 < kTileRows ? w.outputs - row0 : kTileRows);
    float* to = out + token * stride + row0;
    Floats scaled[kVectors];
    for (int v = 0; v < kVectors; ++v) scaled[v] = total[v] * x.scales[token];
    const float* value = reinterpret_cast<const float*>(scaled);
    for (int row = 0; row < rows; ++row) to[row] = w.bias ? value[row] + w.bias[row0 + row] : value[row];
}

template <class Dot, int T, int kBits>
void grid_sweep(const Grid& w, const Staged& x, int64_t tile, int64_t first, float* out, int64_t stride) {
    const int64_t groups = w.groups(), group_blocks = w.group_size / kBlockColumns;
    constexpr int64_t kBytes = kBlockColumns * kTileRows * kBits / 8;
    const uint8_t* block = w.data + tile * w.tile_bytes();
    const uint8_t* scales = block + w.blocks() * kBytes;
    const int64_t scale_step = w.scale_bytes() / groups;  // the scales of the next tile are prefetched along with those of this
    const int8_t* codes = codes_in(Dot::kOrder, x) + first * x.stride;
    Floats total[T][kVectors] = {};
    int64_t left = w.blocks();
    for (int64_t group = 0; group < groups; ++group, left -= group_blocks) {
        const int64_t count = left < group_blocks ? left : group_blocks;
        alignas(64) int32_t sums[T][kTileRows];
        int32_t start[T];
        for (int t = 0; t < T; ++t) start[t] = -w.zero() * x.sums[(first + t) * groups + group];
        Dot::template run<T, kBits>(block, count, codes, x.stride, start, sums);
        Floats scale[kVectors], minimum[kVectors] = {};  // initialized, because GCC cannot see that it is read only if it is set
        read_scales(w, scales, group, scale, minimum);
        __builtin_prefetch(scales + w.tile_bytes() + group * scale_step);
        for (int t = 0; t < T; ++t)
            for (int v = 0; v < kVectors; ++v)
                total[t][v] += __builtin_convertvector(reinterpret_cast<const Ints*>(sums[t])[v], Floats) * scale[v];
        if (w.form == kOffset)
            for (int t = 0; t < T; ++t) {
                const float sum = static_cast<float>(x.sums[(first + t) * groups + group]);
                for (int v = 0; v < kVectors; ++v) total[t][v] -= sum * minimum[v];
            }
        block += count * kBytes;
        codes += count * kBlockColumns * column_bytes(Dot::kOrder, T);
    }
    for (int t = 0; t < T; ++t) write_rows(w, x, tile, first + t, total[t], out, stride);
}

// Computes all tokens, eight at a time. From the second eight on, the blocks of the tile are in the cache.
template <class Dot, int kBits>
void grid_tokens(const Grid& w, const Staged& x, int64_t tile, float* out, int64_t stride) {
    int64_t first = 0;
    for (; x.tokens - first >= kTokens; first += kTokens) grid_sweep<Dot, kTokens, kBits>(w, x, tile, first, out, stride);
    switch (x.tokens - first) {
        case 1: return grid_sweep<Dot, 1, kBits>(w, x, tile, first, out, stride);
        case 2: return grid_sweep<Dot, 2, kBits>(w, x, tile, first, out, stride);
        case 3: return grid_sweep<Dot, 3, kBits>(w, x, tile, first, out, stride);
        case 4: return grid_sweep<Dot, 4, kBits>(w, x, tile, first, out, stride);
        case 5: return grid_sweep<Dot, 5, kBits>(w, x, tile, first, out, stride);
        case 6: return grid_sweep<Dot, 6, kBits>(w, x, tile, first, out, stride);
        case 7: return grid_sweep<Dot, 7, kBits>(w, x, tile, first, out, stride);
        default: return;
    }
}

// Computes all tokens with codes of either size.
template <class Dot>
void grid_products(const Grid& w, const Staged& x, int64_t tile, float* out, int64_t stride) {
    w.bits == 5 ? grid_tokens<Dot, 5>(w, x, tile, out, stride) : grid_tokens<Dot, 4>(w, x, tile, out, stride);
}

}  // namespace
}  // namespace edgedec

// Defines the function of a path for the table in dispatch.cpp.
#define EDGEDEC_DEFINE_GRID(name)                                                                        \
    namespace edgedec {                                                                                  \
    void grid_##name(const Grid& w, const Staged& x, int64_t tile, float* out, int64_t stride) {         \
        grid_products<Dot>(w, x, tile, out, stride);                                                     \
    }                                                                                                    \
    }  // namespace edgedec
