// The ids that llama.cpp writes greedily: greedy MODEL COUNT ID... prints COUNT ids. Float32 everywhere, one thread.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "llama.h"

int main(int argc, char** argv) {
    if (argc < 4) return 1;
    llama_model_params settings = llama_model_default_params();
    settings.n_gpu_layers = 0;
    llama_model* model = llama_model_load_from_file(argv[1], settings);
    if (!model) return 2;
    llama_context_params params = llama_context_default_params();
    params.n_ctx = 64;
    params.n_threads = params.n_threads_batch = 1;
    params.type_k = params.type_v = GGML_TYPE_F32;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    llama_context* context = llama_init_from_model(model, params);
    if (!context) return 3;
    const int vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    std::vector<llama_token> ids;
    for (int i = 3; i < argc; ++i) ids.push_back(std::atoi(argv[i]));
    llama_token next = 0;
    llama_batch batch = llama_batch_get_one(ids.data(), static_cast<int>(ids.size()));
    for (int count = std::atoi(argv[2]); count > 0; --count) {
        if (llama_decode(context, batch)) return 4;
        const float* logits = llama_get_logits_ith(context, -1);
        next = 0;
        for (int i = 1; i < vocab; ++i)
            if (logits[i] > logits[next]) next = i;
        std::printf("%d ", next);
        batch = llama_batch_get_one(&next, 1);
    }
    return 0;
}
