// int8 products with AMX, for matrices that are stored by rows: a tile is 16 stored rows of 64 columns, read in place, and the
// other operand is the codes of 16 tokens, which are arranged by fours of columns first.
#include "products/amx.hpp"

#if EDGEDEC_AMX

#include "products/int8.hpp"

namespace edgedec {
namespace {

constexpr int64_t kStep = 64, kRowsOfTile = 16, kBlockTokens = 16;
constexpr int64_t kMostColumns = 4096;       // the arranged activations of 32 tokens take 128 KiB of the stack
constexpr int64_t kLeastTokens = 5;          // below that, avx512vnni is faster
constexpr int64_t kAhead = 4 * kRowsOfTile;  // rows between a tile and the one that is prefetched

// Arranges the codes of `tokens` tokens from `first` on as [column / 4][16][4].
void arrange(const Staged& x, int64_t first, int64_t tokens, int64_t columns, int8_t* to) {
    for (int64_t t = 0; t < tokens; ++t) {
        const int8_t* from = x.codes + (first + t) * x.stride;
        for (int64_t i = 0; i < columns; i += 4) __builtin_memcpy(to + i * kBlockTokens + 4 * t, from + i, 4);
    }
}

// Writes the results of a tile of 16 rows from `row` on and of `tokens` tokens from `token` on.
void finish(const Int8Matrix& w, const Staged& x, int64_t row, int64_t token, int64_t tokens,
            const int32_t (*sums)[kBlockTokens], float* out, int64_t stride) {
    for (int64_t t = 0; t < tokens; ++t) {
        float* to = out + (token + t) * stride + row;
        for (int64_t r = 0; r < kRowsOfTile; ++r) {
            const float value = static_cast<float>(sums[r][t]) * x.scales[token + t] * w.scales[row + r];
            to[r] = w.bias ? value + w.bias[row + r] : value;
        }
    }
}

// Computes rows [first, last), whole tiles, of `tokens` tokens from `token` on: up to 16, or with Two, 17 to 32.
template <bool Two>
void block(const Int8Matrix& w, const Staged& x, int64_t token, int64_t tokens, int64_t first, int64_t last, float* out,
           int64_t stride) {
    const int64_t one = Two ? kBlockTokens : tokens, other = tokens - one;
    alignas(64) int8_t acts[Two ? 2 : 1][kMostColumns * kBlockTokens];
    alignas(64) int32_t sums[Two ? 2 : 1][kRowsOfTile][kBlockTokens];
    arrange(x, token, one, w.inputs, acts[0]);
    if constexpr (Two) arrange(x, token + one, other, w.inputs, acts[1]);
    TileShapes shapes;
    shapes.set(0, kRowsOfTile, 4 * one);
    shapes.set(2, kRowsOfTile, kStep);
    shapes.set(3, kStep / 4, 4 * one);
    if (Two) {
        shapes.set(1, kRowsOfTile, 4 * other);
        shapes.set(4, kStep / 4, 4 * other);
    }
    configure_tiles(shapes);
    for (int64_t row = first; row < last; row += kRowsOfTile) {
        const int8_t* codes = w.codes + row * w.inputs;
        const int64_t ahead = row + kAhead + kRowsOfTile <= w.outputs ? kAhead * w.inputs : 0;
        clear_tile<0>();
        if constexpr (Two) clear_tile<1>();
        for (int64_t i = 0; i < w.inputs; i += kStep) {
            for (int64_t r = 0; ahead && r < kRowsOfTile; ++r) __builtin_prefetch(codes + ahead + r * w.inputs + i, 0, 2);
            load_tile<2>(codes + i, w.inputs);
            load_tile<3>(acts[0] + i * kBlockTokens, 4 * kBlockTokens);
            multiply<0, 2, 3, true>();
            if constexpr (Two) {
                load_tile<4>(acts[1] + i * kBlockTokens, 4 * kBlockTokens);
                multiply<1, 2, 4, true>();
            }
        }
        store_tile<0>(sums[0], sizeof sums[0][0]);
        finish(w, x, row, token, one, sums[0], out, stride);
        if constexpr (Two) {
            store_tile<1>(sums[1], sizeof sums[1][0]);
            finish(w, x, row, token + one, other, sums[1], out, stride);
        }
    }
    release_tiles();
}

}  // namespace

void int8_rows_amx(const Int8Matrix& w, const Staged& x, int64_t first, int64_t last, float* out, int64_t stride) {
    // A row of a tile must not reach into the next stored row.
    if (!w.by_rows || w.inputs % kStep || w.inputs > kMostColumns || x.tokens < kLeastTokens)
        return int8_rows_avx512vnni(w, x, first, last, out, stride);
    const int64_t whole = first + (last - first) / kRowsOfTile * kRowsOfTile;
    for (int64_t token = 0; whole > first && token < x.tokens; token += 2 * kBlockTokens) {
        const int64_t left = x.tokens - token, tokens = left < 2 * kBlockTokens ? left : 2 * kBlockTokens;
        (tokens > kBlockTokens ? block<true> : block<false>)(w, x, token, tokens, first, whole, out, stride);
    }
    if (whole < last) int8_rows_avx512vnni(w, x, whole, last, out, stride);
}

}  // namespace edgedec

#endif
