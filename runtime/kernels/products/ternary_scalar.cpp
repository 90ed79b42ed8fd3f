// Ternary products without vectors. The other paths are compared with this one and with NumPy.
#include "products/ternary_tile.hpp"

namespace edgedec {
namespace {

struct Dot {
    static constexpr Order kOrder = Order::rows;
    static constexpr bool kRagged = false;

    template <int T>
    static void run(const uint8_t* line, int64_t count, const int8_t* x, int64_t stride, int32_t (*sums)[kTileRows]) {
        for (int t = 0; t < T; ++t)
            for (int row = 0; row < kTileRows; ++row) sums[t][row] = 0;
        for (int64_t i = 0; i < count; ++i)
            for (int row = 0; row < kTileRows; ++row)
                for (int column = 0; column < kLineColumns; ++column) {
                    const int code = line[i * kLineBytes + 4 * row + column % 4] >> (2 * (column / 4)) & 3;
                    for (int t = 0; t < T; ++t) sums[t][row] += code * x[t * stride + i * kLineColumns + column];
                }
    }
};

}  // namespace
}  // namespace edgedec

EDGEDEC_DEFINE_PATH(scalar)
