// Reads cases from standard input, as test_grid.py writes them, multiplies each on the code path that argv names, and writes the
// results. For processors whose library no Python here could load.
#include <cstdint>
#include <cstdio>
#include <vector>

extern "C" {
const char* edgedec_error();
int64_t edgedec_grid_bytes(int64_t, int64_t, int32_t, int32_t, int32_t);
int32_t edgedec_path_usable(const char*);
int32_t edgedec_grid_matmul(const char*, int64_t, int64_t, int32_t, int32_t, int32_t, const uint8_t*, const float*,
                            const int8_t*, int64_t, const float*, int64_t, int64_t, float*);
}

template <class T>
std::vector<T> take(int64_t count) {
    std::vector<T> values(static_cast<size_t>(count));
    if (std::fread(values.data(), sizeof(T), values.size(), stdin) != values.size()) std::perror("truncated case");
    return values;
}

int main(int argc, char** argv) {
    if (argc != 2 || !edgedec_path_usable(argv[1])) {
        std::fprintf(stderr, "the code path cannot run here, or fails its self-test\n");
        return 2;
    }
    int64_t head[7];
    while (std::fread(head, sizeof head, 1, stdin) == 1) {
        const auto [outputs, inputs, bits64, form64, group64, tokens, has_bias] = head;
        const auto bits = static_cast<int32_t>(bits64), form = static_cast<int32_t>(form64);
        const auto group = static_cast<int32_t>(group64);
        const auto data = take<uint8_t>(edgedec_grid_bytes(outputs, inputs, bits, form, group));
        const auto x = take<int8_t>(tokens * inputs);
        const auto token_scales = take<float>(tokens);
        const auto bias = take<float>(has_bias ? outputs : 0);
        std::vector<float> out(static_cast<size_t>(tokens * outputs));
        if (edgedec_grid_matmul(argv[1], outputs, inputs, bits, form, group, data.data(), has_bias ? bias.data() : nullptr,
                                x.data(), tokens, token_scales.data(), 0, (outputs + 15) / 16, out.data())) {
            std::fprintf(stderr, "%s\n", edgedec_error());
            return 1;
        }
        std::fwrite(out.data(), sizeof(float), out.size(), stdout);
    }
    return 0;
}
