// Weights into the kernels' layout, and activations into theirs.
#include <cmath>
#include <cstring>
#include <limits>

#include "ternary.hpp"

namespace edgedec {

const char* Ternary::problem() const {
    if (outputs < 1 || outputs > kMostOutputs) return "outputs must be 1 to 2^26";
    if (inputs < 1 || inputs > kMostInputs) return "inputs must be 1 to 2^20";
    if (planes < 1 || planes > 3) return "planes must be 1, 2 or 3";
    if (group_size != 0 && group_size != 32 && group_size != 64 && group_size != 128)
        return "group_size must be 0, 32, 64 or 128";
    return nullptr;
}

int64_t pack_tile(const uint8_t* codes, int64_t row_bytes, int64_t outputs, int64_t inputs, int64_t tile,
                  uint8_t* out) {
    const int64_t lines = (inputs + kLineColumns - 1) / kLineColumns;
    std::memset(out, 0x55, static_cast<size_t>(lines * kLineBytes));  // zero trits: code 1, four times
    for (int row = 0; row < kTileRows && tile * kTileRows + row < outputs; ++row) {
        const int64_t number = tile * kTileRows + row;
        const uint8_t* from = codes + number * row_bytes;
        for (int64_t i = 0; i < lines; ++i) {
            uint8_t stored[kLineColumns];  // trit + 2; past the last column zero trits
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

void pack_tile_scales(const float* scales, const Ternary& shape, int64_t tile, float* out) {
    const int64_t groups = shape.groups();
    for (int64_t plane = 0; plane < shape.planes; ++plane)
        for (int64_t group = 0; group < groups; ++group)
            for (int64_t row = 0; row < kTileRows; ++row) {
                const int64_t number = tile * kTileRows + row;
                *out++ = number < shape.outputs ? scales[(plane * shape.outputs + number) * groups + group] : 0.0f;
            }
}

void quantize_token(const float* x, int64_t columns, int8_t* codes, int64_t stride, float* scale) {
    // Without the sign bit, floats order as their bits do; NaN comes after infinity.
    int32_t largest = 0;
    for (int64_t i = 0; i < columns; ++i) {
        int32_t bits;
        std::memcpy(&bits, x + i, sizeof bits);
        bits &= 0x7fffffff;
        largest = bits > largest ? bits : largest;
    }
    float absmax;
    std::memcpy(&absmax, &largest, sizeof absmax);
    std::memset(codes + columns, 0, static_cast<size_t>(stride - columns));
    if (largest >= 0x7f800000) {
        *scale = std::numeric_limits<float>::quiet_NaN();
        std::memset(codes, 0, static_cast<size_t>(columns));
        return;
    }
    *scale = absmax / 127.0f;
    if (!(*scale > 0.0f)) {  // zeros, or so near to zero that the scale underflows
        std::memset(codes, 0, static_cast<size_t>(columns));
        return;
    }
    // Adding 1.5 x 2^23 leaves no bit for a fraction: the sum is rounded half to even, as NumPy's rint does.
    constexpr float kRound = 12582912.0f;
    const float divisor = *scale;
    for (int64_t i = 0; i < columns; ++i) {
        float value = x[i] / divisor;
        // A denormal scale is rounded to few bits, and a code could pass 127.
        value = value > 127.0f ? 127.0f : value;
        value = value < -127.0f ? -127.0f : value;
        const float rounded = value + kRound;
        int32_t bits;
        std::memcpy(&bits, &rounded, sizeof bits);
        codes[i] = static_cast<int8_t>(bits);  // its last byte is the integer, in two's complement
    }
}

void sum_groups(const int8_t* codes, int64_t columns, int64_t group_size, int32_t* sums) {
    const int64_t size = group_size ? group_size : columns;
    for (int64_t start = 0; start < columns; start += size) {
        const int64_t stop = start + size < columns ? start + size : columns;
        int32_t sum = 0;
        for (int64_t i = start; i < stop; ++i) sum += codes[i];
        *sums++ = sum;
    }
}

}  // namespace edgedec
