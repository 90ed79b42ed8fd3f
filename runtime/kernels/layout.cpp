// Conversion of ternary weights to the kernels' layout.
#include <cstring>

#include "ternary.hpp"

namespace edgedec {

const char* Ternary::problem() const {
    if (outputs < 1 || outputs > kMostOutputs) return "outputs must be 1 to 2^26";
    if (inputs < 1 || inputs > kMostInputs) return "inputs must be 1 to 2^20";
    if (planes < 1 || planes > 3) return "planes must be 1, 2 or 3";
    if (group_size != 0 && group_size != 32 && group_size != 64 && group_size != 128)
        return "group_size must be 0, 32, 64 or 128";
    if (half_scales && !group_size) return "the scale of a whole tensor is float32";
    return nullptr;
}

int64_t pack_tile(const uint8_t* codes, int64_t row_bytes, int64_t outputs, int64_t inputs, int64_t tile,
                  uint8_t* out) {
    const int64_t lines = (inputs + kLineColumns - 1) / kLineColumns;
    std::memset(out, 0x55, static_cast<size_t>(lines * kLineBytes));  // four zero trits, whose code is 1
    for (int row = 0; row < kTileRows && tile * kTileRows + row < outputs; ++row) {
        const int64_t number = tile * kTileRows + row;
        const uint8_t* from = codes + number * row_bytes;
        for (int64_t i = 0; i < lines; ++i) {
            uint8_t stored[kLineColumns];  // trit + 2; zero trits after the last column
            for (int column = 0; column < kLineColumns; ++column) {
                const int64_t at = i * kLineColumns + column;
                stored[column] = at < inputs ? from[at / 4] >> (2 * (at % 4)) & 3 : 2;
                if (stored[column] == 0) return number;
            }
            uint8_t* to = out + i * kLineBytes + 4 * row;
            for (int j = 0; j < 4; ++j)
                to[j] = static_cast<uint8_t>((stored[j] - 1) | (stored[j + 4] - 1) << 2 | (stored[j + 8] - 1) << 4 |
                                             (stored[j + 12] - 1) << 6);
        }
    }
    return -1;
}

namespace {

// The bits of 0 are the same in float32 and in float16, so that scales of each kind are moved as integers.
template <class Bits>
void pack_scales(const Ternary& shape, int64_t tile, Bits* out) {
    const auto* scales = static_cast<const Bits*>(shape.scales);
    const int64_t groups = shape.groups();
    for (int64_t plane = 0; plane < shape.planes; ++plane)
        for (int64_t group = 0; group < groups; ++group)
            for (int64_t row = 0; row < kTileRows; ++row) {
                const int64_t number = tile * kTileRows + row;
                *out++ = number < shape.outputs ? scales[(plane * shape.outputs + number) * groups + group] : Bits{0};
            }
}

}  // namespace

void pack_tile_scales(const Ternary& shape, int64_t tile, void* out) {
    shape.half_scales ? pack_scales(shape, tile, static_cast<uint16_t*>(out))
                      : pack_scales(shape, tile, static_cast<uint32_t*>(out));
}

}  // namespace edgedec
