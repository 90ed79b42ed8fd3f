// Ternary products with the matrix products of FEAT_I8MM. Two lines, zipped once, give 32 columns of a row, so that the masks are
// those of the other paths.
#include "products/i8mm.hpp"
#include "products/ternary_tile.hpp"

namespace edgedec {
namespace {

constexpr int64_t kPrefetch = 2048;  // distance of prefetches in bytes

struct Dot {
    static constexpr Order kOrder = Order::pairs;
    static constexpr bool kRagged = false;

    // A quarter of a line is 4 rows. More than two tokens use two quarters at a time, whose sums are up to 16 in 32 registers.
    template <int T>
    static void run(const uint8_t* line, int64_t count, const int8_t* x, int64_t, int32_t (*sums)[kTileRows]) {
        constexpr int kQuarters = T <= 2 ? 4 : 2;
        constexpr int32_t kZero[T] = {};
        for (int quarter = 0; quarter < 4; quarter += kQuarters) {
            PairSums<T, kQuarters> total(kZero);
            const uint8_t* at = line + 16 * quarter;
            const int8_t* columns = x;
            for (int64_t i = count / 2; i > 0; --i, at += 2 * kLineBytes, columns += kPairColumns * 2 * total.kPairs) {
                // Each half of the rows prefetches one of the two lines.
                for (int q = 0; q < kQuarters; q += 2) __builtin_prefetch(at + kPrefetch + (quarter + q) / 2 * kLineBytes);
                add_lines(at, at + kLineBytes, columns, total);
            }
            if (count % 2) add_lines(at, at, columns, total);  // the second 16 columns are multiplied by zeros
            total.store(quarter, sums);
        }
    }

    template <int T, int kQuarters>
    static EDGEDEC_INLINE void add_lines(const uint8_t* line, const uint8_t* second, const int8_t* x,
                                         PairSums<T, kQuarters>& total) {
        const uint8x16_t three = vdupq_n_u8(3);
        RowPairs codes[kQuarters];
        for (int q = 0; q < kQuarters; ++q) codes[q] = zip_rows(vld1q_u8(line + 16 * q), vld1q_u8(second + 16 * q));
#pragma GCC unroll 4
        for (int four = 0; four < 4; ++four) {
            RowPairs masked[kQuarters];
            for (int q = 0; q < kQuarters; ++q)
                for (int h = 0; h < 2; ++h) {
                    uint8x16_t& rows = codes[q].rows[h];
                    masked[q].rows[h] = four < 3 ? vandq_u8(rows, three) : rows;
                    rows = vshrq_n_u8(rows, 2);
                }
            total.add(masked, x + 16 * total.kPairs * four);
            if constexpr (T > 6) total.keep_order(codes);
        }
    }
};

}  // namespace

void tile_neon_i8mm(const Ternary& w, const Staged& x, int64_t tile, float* out, int64_t stride) {
    if (x.tokens < kLeastPairTokens) return tile_neon_dotprod(w, x, tile, out, stride);
    sweep_all<Dot>(w, x, tile, out, stride);
}

}  // namespace edgedec
