// Conversion of ternary weights to the kernels' layout.
#include <cstring>

#include "products/ternary.hpp"

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

namespace {

// Returns the place of a plane's line of codes, or of the scales of a group, in a tile at `out`.
uint8_t* line_at(const Ternary& shape, int64_t line, uint8_t* out) {
    if (!shape.group_size) return out + line * kLineBytes;
    const int64_t before = line * kLineColumns / (shape.group_size * shape.line_groups()) + 1;  // lines of scales
    return out + (line + before) * kLineBytes;
}
uint8_t* scales_at(const Ternary& shape, int64_t group, uint8_t* out) {
    const int64_t first = group / shape.line_groups() * shape.line_groups();  // first group of the line of scales
    return line_at(shape, first * shape.group_size / kLineColumns, out) - kLineBytes + (group - first) * shape.group_bytes();
}

}  // namespace

int64_t pack_codes(const Ternary& shape, const uint8_t* codes, int64_t row_bytes, int64_t tile, uint8_t* out) {
    const int64_t lines = shape.lines();
    for (int64_t i = 0; i < lines; ++i)  // four zero trits, whose code is 1
        std::memset(line_at(shape, i, out), 0x55, static_cast<size_t>(kLineBytes));
    for (int row = 0; row < kTileRows && tile * kTileRows + row < shape.outputs; ++row) {
        const int64_t number = tile * kTileRows + row;
        const uint8_t* from = codes + number * row_bytes;
        for (int64_t i = 0; i < lines; ++i) {
            uint8_t stored[kLineColumns];  // trit + 2; zero trits after the last column
            for (int column = 0; column < kLineColumns; ++column) {
                const int64_t at = i * kLineColumns + column;
                stored[column] = at < shape.inputs ? from[at / 4] >> (2 * (at % 4)) & 3 : 2;
                if (stored[column] == 0) return number;
            }
            uint8_t* to = line_at(shape, i, out) + 4 * row;
            for (int j = 0; j < 4; ++j)
                to[j] = static_cast<uint8_t>((stored[j] - 1) | (stored[j + 4] - 1) << 2 | (stored[j + 8] - 1) << 4 |
                                             (stored[j + 12] - 1) << 6);
        }
    }
    return -1;
}

void pack_scales(const Ternary& shape, const void* scales, int64_t tile, uint8_t* out) {
    const int64_t groups = shape.groups(), padded = shape.scale_lines() * shape.line_groups();
    const size_t size = shape.half_scales ? 2 : 4;
    for (int64_t group = 0; group < padded; ++group) {
        uint8_t* const to = scales_at(shape, group, out);
        std::memset(to, 0, static_cast<size_t>(shape.group_bytes()));
        for (int64_t row = 0; row < kTileRows && group < groups; ++row) {
            const int64_t number = tile * kTileRows + row;
            if (number >= shape.outputs) break;
            const auto at = static_cast<size_t>(number * groups + group);
            std::memcpy(to + static_cast<size_t>(row) * size, static_cast<const uint8_t*>(scales) + at * size, size);
        }
    }
}

}  // namespace edgedec
