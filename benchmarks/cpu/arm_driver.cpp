// Multiplies rows of activations by the first `parts` parts of a matrix on one code path. argv: the kind of matrix (ternary,
// int8, int4 or tied), the path, rows, parts. A part is a tile, or 16 rows of an int8 matrix. There is no self-test, and two
// runs with different parts differ by the instructions of these parts alone.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "products/grid.hpp"
#include "products/int8.hpp"
#include "products/staging.hpp"

using namespace edgedec;

constexpr int64_t kOutputs = 256, kInputs = 1536;
constexpr int32_t kGroup = 64;

int main(int argc, char** argv) {
    const Path* path = argc == 5 ? find_path(argv[2]) : nullptr;
    if (!path || !path->tile || !path->usable()) return 2;
    const int64_t rows = std::atoll(argv[3]), parts = std::atoll(argv[4]);
    const bool ternary = !std::strcmp(argv[1], "ternary"), int8 = !std::strcmp(argv[1], "int8");
    const bool tied = !std::strcmp(argv[1], "tied");
    const std::vector<float> scales(static_cast<size_t>(kOutputs), 1.0f);
    Staging x;
    x.resize(rows, kInputs);
    for (int64_t t = 0; t < rows; ++t) {
        std::memset(x.codes(t), static_cast<int>(t + 1), static_cast<size_t>(x.stride()));
        *x.scale(t) = 1.0f;
        for (int32_t group : {0, kGroup}) x.sum(*path, t, group);
    }
    std::vector<float> out(static_cast<size_t>(rows * kOutputs));
    if (int8) {
        const std::vector<int8_t> codes(static_cast<size_t>(kOutputs * kInputs), 3);
        const Int8Matrix w{kOutputs, kInputs, true, codes.data(), scales.data(), nullptr};
        path->int8_rows(w, x.view(0), 0, kTileRows * parts, out.data(), kOutputs);
    } else if (ternary) {
        const Ternary w{kOutputs, kInputs, 1, 0, nullptr, scales.data(), nullptr};
        const std::vector<uint8_t> codes(static_cast<size_t>(w.bytes()), 0x64);
        Ternary filled = w;
        filled.codes = codes.data();
        x.arrange(*path);
        for (int64_t tile = 0; tile < parts; ++tile) path->tile(filled, x.view(0), tile, out.data(), kOutputs);
    } else {
        Grid w{kOutputs, kInputs, tied ? 5 : 4, tied ? kFloat : kHalf, kGroup, nullptr, nullptr};
        const std::vector<uint8_t> data(static_cast<size_t>(w.bytes()), 0x11);
        w.data = data.data();
        x.arrange_for_grid(*path);
        for (int64_t tile = 0; tile < parts; ++tile) path->grid(w, x.view(kGroup), tile, out.data(), kOutputs);
    }
    std::printf("%g\n", static_cast<double>(out[0]));
    return 0;
}
