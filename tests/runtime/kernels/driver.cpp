// Reads cases from standard input, as test_ternary.py writes them, packs and multiplies each on the code path that argv
// names, and writes the results. Without arguments, it writes the name of the path that a process uses here. For processors
// whose library no Python here could load.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

extern "C" {
const char* edgedec_error();
const char* edgedec_path();
int64_t edgedec_ternary_bytes(int64_t, int64_t, int32_t, int32_t, int32_t);
int32_t edgedec_ternary_pack(const uint8_t*, const void*, int64_t, int64_t, int64_t, int32_t, int32_t, int32_t, int64_t,
                             int64_t, uint8_t*);
int32_t edgedec_path_usable(const char*);
int32_t edgedec_ternary_matmul(const char*, int64_t, int64_t, int32_t, int32_t, int32_t, const uint8_t*, const float*,
                               const float*, const uint8_t*, int32_t, int64_t, const float*, int64_t, int64_t, float*);
}

template <class T>
std::vector<T> take(int64_t count) {
    std::vector<T> values(static_cast<size_t>(count));
    if (std::fread(values.data(), sizeof(T), values.size(), stdin) != values.size()) std::perror("truncated case");
    return values;
}

int main(int argc, char** argv) {
    if (argc == 1) {
        const char* path = edgedec_path();
        std::fputs(path ? path : edgedec_error(), stdout);
        return !path;
    }
    if (argc != 2 || !edgedec_path_usable(argv[1])) {
        std::fprintf(stderr, "the code path cannot run here, or fails its self-test\n");
        return 2;
    }
    int64_t head[8];
    while (std::fread(head, sizeof head, 1, stdin) == 1) {
        const auto [outputs, inputs, planes64, group64, half64, row_bytes, tokens, has_bias] = head;
        const auto planes = static_cast<int32_t>(planes64), group = static_cast<int32_t>(group64);
        const auto half = static_cast<int32_t>(half64);
        const int64_t size = half ? 2 : 4;  // bytes of a scale
        const int64_t groups = group ? (inputs + group - 1) / group : 1, tiles = (outputs + 15) / 16;
        const auto stored = take<uint8_t>(planes * outputs * row_bytes);
        const auto stored_scales = take<uint8_t>(size * (group ? planes * outputs * groups : 1));
        const auto x = take<uint8_t>(tokens * inputs);
        const auto token_scales = take<float>(tokens);
        const auto bias = take<float>(has_bias ? outputs : 0);
        std::vector<uint8_t> packed(static_cast<size_t>(edgedec_ternary_bytes(outputs, inputs, planes, group, half)));
        float scale = 0;  // scale of the whole tensor
        if (!group) std::memcpy(&scale, stored_scales.data(), sizeof scale);
        std::vector<float> out(static_cast<size_t>(tokens * outputs));
        int32_t failed = edgedec_ternary_pack(stored.data(), stored_scales.data(), row_bytes, outputs, inputs, planes, group,
                                              half, 0, tiles, packed.data());
        failed |= edgedec_ternary_matmul(argv[1], outputs, inputs, planes, group, half, packed.data(), &scale,
                                         has_bias ? bias.data() : nullptr, x.data(), 0, tokens, token_scales.data(), 0,
                                         tiles, out.data());
        if (failed) {
            std::fprintf(stderr, "%s\n", edgedec_error());
            return 1;
        }
        std::fwrite(out.data(), sizeof(float), out.size(), stdout);
    }
    return 0;
}
