// Products of codes of 4 or 5 bits without vectors. The other paths are compared with this one and with NumPy.
#include "products/grid_tile.hpp"

namespace edgedec {
namespace {

struct Dot {
    static constexpr Order kOrder = Order::rows;

    template <int T, int kBits>
    static void run(const uint8_t* block, int64_t count, const int8_t* x, int64_t stride, const int32_t* start,
                    int32_t (*sums)[kTileRows]) {
        for (int t = 0; t < T; ++t)
            for (int row = 0; row < kTileRows; ++row) sums[t][row] = start[t];
        for (int64_t i = 0; i < count; ++i, block += kBlockColumns * kTileRows * kBits / 8, x += kBlockColumns)
            for (int row = 0; row < kTileRows; ++row)
                for (int column = 0; column < kBlockColumns; ++column) {
                    const int four = column / 4, at = 4 * row + column % 4;
                    int code = block[four / 2 * kLineBytes + at] >> (four % 2 * 4) & 15;
                    if (kBits == 5) code |= (block[4 * kLineBytes + at] >> four & 1) << 4;
                    for (int t = 0; t < T; ++t) sums[t][row] += code * x[t * stride + column];
                }
    }
};

}  // namespace
}  // namespace edgedec

EDGEDEC_DEFINE_GRID(scalar)
