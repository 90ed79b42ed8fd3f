// Products of codes of 4 or 5 bits with the matrix products of FEAT_I8MM. A line of a block is zipped with the one that holds the
// columns 16 further on.
#include "products/grid_neon.hpp"
#include "products/i8mm.hpp"

namespace edgedec {
namespace {

constexpr int64_t kPrefetch = 2048;        // distance of prefetches in bytes
constexpr int64_t kLeastTokensOf5Bits = 4;  // tokens below which most instructions unpack codes, and dot products are fewer

struct Dot {
    static constexpr Order kOrder = Order::pairs;

    // A quarter of a line is 4 rows. More than two tokens, and the highest bits, leave registers for two quarters at a time.
    template <int T, int kBits>
    static void run(const uint8_t* block, int64_t count, const int8_t* x, int64_t, const int32_t* start,
                    int32_t (*sums)[kTileRows]) {
        constexpr int kQuarters = T <= 2 && kBits == 4 ? 4 : 2;
        for (int quarter = 0; quarter < 4; quarter += kQuarters) {
            PairSums<T, kQuarters> total(start);
            const uint8_t* at = block + 16 * quarter;
            const int8_t* columns = x;
            for (int64_t i = 0; i < count; ++i, at += kLineBytes * kBits) {
                __builtin_prefetch(at + kPrefetch);
                RowPairs highest[kQuarters];
                for (int q = 0; kBits == 5 && q < kQuarters; ++q) {
                    const uint8x16_t bits = vld1q_u8(at + 4 * kLineBytes + 16 * q);
                    highest[q] = zip_rows(bits, vshrq_n_u8(bits, 4));  // bit `four` belongs to the codes of that four
                }
#pragma GCC unroll 2
                for (int line = 0; line < 2; ++line) {
                    RowPairs codes[kQuarters];
                    for (int q = 0; q < kQuarters; ++q) {
                        const uint8_t* first = at + line * kLineBytes + 16 * q;
                        codes[q] = zip_rows(vld1q_u8(first), vld1q_u8(first + 2 * kLineBytes));
                    }
#pragma GCC unroll 2
                    for (int half = 0; half < 2; ++half, columns += 16 * total.kPairs) {
                        RowPairs unpacked[kQuarters];
                        for (int q = 0; q < kQuarters; ++q)
                            for (int h = 0; h < 2; ++h) {
                                uint8x16_t& rows = unpacked[q].rows[h];
                                rows = half_of(codes[q].rows[h], half);
                                if (kBits == 5) rows = with_highest(rows, highest[q].rows[h], 2 * line + half);
                            }
                        total.add(unpacked, columns);
                        if constexpr (T > 4) total.keep_order(codes);
                    }
                }
            }
            total.store(quarter, sums);
        }
    }
};

}  // namespace

void grid_neon_i8mm(const Grid& w, const Staged& x, int64_t tile, float* out, int64_t stride) {
    if (x.tokens < (w.bits == 5 ? kLeastTokensOf5Bits : kLeastPairTokens)) return grid_neon_dotprod(w, x, tile, out, stride);
    grid_products<Dot>(w, x, tile, out, stride);
}

}  // namespace edgedec
