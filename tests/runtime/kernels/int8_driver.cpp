// Reads cases from standard input, as test_int8.py writes them, multiplies each on the code path that argv names, and writes
// the results. For processors whose library no Python here could load.
#include <cstdint>
#include <cstdio>
#include <vector>

extern "C" {
const char* edgedec_error();
int32_t edgedec_path_usable(const char*);
int32_t edgedec_int8_matmul(const char*, int64_t, int64_t, int32_t, const int8_t*, const float*, const float*,
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
    int64_t head[5];
    while (std::fread(head, sizeof head, 1, stdin) == 1) {
        const auto [outputs, inputs, by_rows, tokens, has_bias] = head;
        const auto codes = take<int8_t>(outputs * inputs);
        const auto scales = take<float>(outputs);
        const auto x = take<int8_t>(tokens * inputs);
        const auto token_scales = take<float>(tokens);
        const auto bias = take<float>(has_bias ? outputs : 0);
        std::vector<float> out(static_cast<size_t>(tokens * outputs));
        if (edgedec_int8_matmul(argv[1], outputs, inputs, by_rows != 0, codes.data(), scales.data(),
                                has_bias ? bias.data() : nullptr, x.data(), tokens, token_scales.data(), 0, outputs,
                                out.data())) {
            std::fprintf(stderr, "%s\n", edgedec_error());
            return 1;
        }
        std::fwrite(out.data(), sizeof(float), out.size(), stdout);
    }
    return 0;
}
