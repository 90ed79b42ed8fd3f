// The loops around a path's dot product. Included once by each path's file and compiled with that file's instructions;
// everything is local to it (and no inline function of the standard library is used), for the linker would keep only one
// of several copies, perhaps one with instructions that this CPU lacks.
#pragma once

#include "ternary.hpp"

namespace edgedec {
namespace {

// Dot::run<T>(line, count, x, stride, sums): the exact sums of `count` lines with T tokens, int32 [T][16].
template <class Dot, int T>
void sweep(const Ternary& w, const Staged& x, int64_t tile, int64_t first, float* out, int64_t stride) {
    const int64_t lines = w.lines(), groups = w.groups();
    const int64_t group_lines = w.group_size ? w.group_size / kLineColumns : lines;
    const uint8_t* line = w.codes + tile * w.planes * lines * kLineBytes;
    const float* scales = w.group_size ? w.scales + tile * w.planes * groups * kTileRows : w.scales;
    alignas(64) float total[T][kTileRows] = {};
    for (int32_t plane = 0; plane < w.planes; ++plane) {
        const int8_t* codes = x.codes + first * x.stride;
        int64_t left = lines;
        for (int64_t group = 0; group < groups; ++group) {
            const int64_t count = left < group_lines ? left : group_lines;
            alignas(64) int32_t sums[T][kTileRows];
            Dot::template run<T>(line, count, codes, x.stride, sums);
            alignas(64) float factor[kTileRows];
            for (int row = 0; row < kTileRows; ++row) factor[row] = w.group_size ? scales[row] : scales[0];
            for (int t = 0; t < T; ++t) {
                const int32_t offset = x.sums[(first + t) * groups + group];
                for (int row = 0; row < kTileRows; ++row)
                    total[t][row] += static_cast<float>(sums[t][row] - offset) * factor[row];
            }
            line += count * kLineBytes;
            codes += count * kLineColumns;
            left -= count;
            if (w.group_size) scales += kTileRows;
        }
    }
    const int64_t row0 = tile * kTileRows;
    const int rows = static_cast<int>(w.outputs - row0 < kTileRows ? w.outputs - row0 : kTileRows);
    for (int t = 0; t < T; ++t) {
        const float scale = x.scales[first + t];
        float* to = out + (first + t) * stride + row0;
        for (int row = 0; row < rows; ++row) {
            const float value = total[t][row] * scale;
            to[row] = w.bias ? value + w.bias[row0 + row] : value;
        }
    }
}

// All tokens, eight at a time: from the second eight on the tile's lines come from the cache.
template <class Dot>
void sweep_all(const Ternary& w, const Staged& x, int64_t tile, float* out, int64_t stride) {
    int64_t first = 0;
    for (; x.tokens - first >= kTokens; first += kTokens) sweep<Dot, kTokens>(w, x, tile, first, out, stride);
    switch (x.tokens - first) {
        case 1: return sweep<Dot, 1>(w, x, tile, first, out, stride);
        case 2: return sweep<Dot, 2>(w, x, tile, first, out, stride);
        case 3: return sweep<Dot, 3>(w, x, tile, first, out, stride);
        case 4: return sweep<Dot, 4>(w, x, tile, first, out, stride);
        case 5: return sweep<Dot, 5>(w, x, tile, first, out, stride);
        case 6: return sweep<Dot, 6>(w, x, tile, first, out, stride);
        case 7: return sweep<Dot, 7>(w, x, tile, first, out, stride);
        default: return;
    }
}

}  // namespace
}  // namespace edgedec
