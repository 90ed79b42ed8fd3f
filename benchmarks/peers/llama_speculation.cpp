// Writes greedy texts with llama.cpp's own speculation, prompts given as ids; tokens past the vocabulary are never chosen.
// The round is that of llama.cpp's examples/speculative-simple; guesses, their cost and their bookkeeping are all
// common_speculative's. The target's choice is an argmax, cheaper than llama.cpp's sampler.
//
//     driver MODEL DRAFT THREADS DRAFT_THREADS CONTEXT VOCAB EOS
//
// Then one command a line, one answer a line; the answer to a line that went wrong begins with "error".
//     read ID...                              brings all ids but the last into the target's cache
//     write TYPE MATCH MOST TOKENS            the text after them, with a --spec-type or "none"; MATCH and MOST are n-gram
//         size and most guesses a round, 0 for llama.cpp's own
// The answer to write: seconds, of these the seconds of guessing, rounds, guesses, accepted guesses, then the ids.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "common.h"
#include "ggml-cpu.h"
#include "llama-cpp.h"
#include "llama.h"
#include "speculative.h"

namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point began) { return std::chrono::duration<double>(Clock::now() - began).count(); }

constexpr llama_seq_id sequence = 0;

struct Text {
    double seconds = 0, draft_seconds = 0;
    int rounds = 0, drafted = 0, accepted = 0;
    llama_tokens ids;
};

struct Model {
    Model(const char* path, int threads, int positions) {
        llama_model_params model_params = llama_model_default_params();
        model_params.n_gpu_layers = 0;
        model.reset(llama_model_load_from_file(path, model_params));
        if (model == nullptr) throw std::runtime_error(std::string(path) + " cannot be loaded");
        llama_context_params params = llama_context_default_params();
        params.n_ctx = static_cast<std::uint32_t>(positions);
        params.n_threads = params.n_threads_batch = threads;
        context.reset(llama_init_from_model(model.get(), params));
        if (context == nullptr) throw std::runtime_error("no context");
        ggml_threadpool_params pool = ggml_threadpool_params_default(threads);
        llama_attach_threadpool(context.get(), ggml_threadpool_new(&pool), nullptr);
    }

    void cut(int past) const {
        if (!llama_memory_seq_rm(llama_get_memory(context.get()), sequence, past, -1))
            throw std::runtime_error("cannot truncate");
    }

    llama_model_ptr model;
    llama_context_ptr context;
};

void decode(llama_context* context, llama_batch_ext* batch) {
    if (const int code = llama_process(context, LLAMA_PROCESS_TYPE_DECODE, batch))
        throw std::runtime_error("llama_process gave " + std::to_string(code));
}

class Driver {
   public:
    Driver(char** arguments)
        : target_(arguments[1], std::atoi(arguments[3]), std::atoi(arguments[5])),
          draft_(arguments[2], std::atoi(arguments[4]), std::atoi(arguments[5])),
          vocab_(std::atoi(arguments[6])),
          eos_(std::atoi(arguments[7])) {}

    std::string about() const {
        char name[128];
        llama_model_desc(target_.model.get(), name, sizeof name);
        std::ostringstream out;
        out << llama_model_size(target_.model.get()) << '\t' << name << '\t' << llama_version() << '\t'
            << llama_print_system_info();
        return out.str();
    }

    std::size_t read(const llama_tokens& ids) {
        if (ids.size() < 2) throw std::runtime_error("a prompt needs two tokens");
        target_.cut(0);
        prompt_.assign(ids.begin(), ids.end() - 1);
        last_ = ids.back();
        common_batch batch = prompt_batch(target_.context.get());
        const int at_once = static_cast<int>(llama_n_batch(target_.context.get()));
        for (int at = 0; at < batch.size(); at += at_once)
            decode(target_.context.get(), batch.get_sub_batch(at, std::min(at_once, batch.size() - at)));
        llama_synchronize(target_.context.get());
        return prompt_.size();
    }

    Text write(const std::string& type, int match, int most, int tokens) {
        target_.cut(static_cast<int>(prompt_.size()));
        common_speculative_ptr guesser;
        const bool has_draft = type == "draft-simple";
        if (type != "none") {
            common_params_speculative params = parameters(type, match, most);
            guesser.reset(common_speculative_init(params, 1));
            if (guesser == nullptr) throw std::runtime_error("llama.cpp does not speculate with " + type);
            if (has_draft) {
                draft_.cut(0);
                if (!common_speculative_process(guesser.get(), prompt_batch(draft_.context.get())))
                    throw std::runtime_error("the draft cannot read the prompt");
                llama_synchronize(draft_.context.get());
            }
        }
        Text text;
        llama_tokens known = prompt_;
        known.reserve(prompt_.size() + static_cast<std::size_t>(tokens));
        llama_token last = last_;
        common_batch batch(target_.context.get());
        const auto began = Clock::now();
        common_speculative_begin(guesser.get(), sequence, known);
        while (static_cast<int>(text.ids.size()) < tokens && (text.ids.empty() || text.ids.back() != eos_)) {
            const int past = static_cast<int>(known.size());
            const int left = tokens - static_cast<int>(text.ids.size());
            const auto guessing = Clock::now();
            const llama_tokens guess = guesses(guesser.get(), known, last, left - 1);
            if (has_draft) draft_.cut(past);
            text.draft_seconds += since(guessing);
            batch.clear();
            batch.add(last, past, sequence, true);
            for (std::size_t at = 0; at < guess.size(); ++at)
                batch.add(guess[at], past + 1 + static_cast<int>(at), sequence, true);
            decode(target_.context.get(), batch.get());
            llama_synchronize(target_.context.get());
            const auto following = Clock::now();
            if (!common_speculative_process(guesser.get(), batch)) throw std::runtime_error("the draft cannot follow");
            text.draft_seconds += since(following);
            const llama_tokens chosen = choose(guess);
            if (!guess.empty())
                common_speculative_accept(guesser.get(), sequence, static_cast<std::uint16_t>(chosen.size() - 1));
            ++text.rounds;
            text.drafted += static_cast<int>(guess.size());
            text.accepted += static_cast<int>(chosen.size()) - 1;
            for (const llama_token id : chosen) {
                known.push_back(last);
                text.ids.push_back(last = id);
                if (id == eos_) break;
            }
            target_.cut(static_cast<int>(known.size()));
            if (has_draft) draft_.cut(static_cast<int>(known.size()));
        }
        text.seconds = since(began);
        return text;
    }

   private:
    common_batch prompt_batch(llama_context* context) const {
        common_batch batch(context);
        for (std::size_t at = 0; at < prompt_.size(); ++at)
            batch.add(prompt_[at], static_cast<llama_pos>(at), sequence, false);
        return batch;
    }

    common_params_speculative parameters(const std::string& type, int match, int most) const {
        common_params_speculative params;
        params.types = common_speculative_types_from_names({type});
        params.draft.ctx_tgt = target_.context.get();
        params.draft.ctx_dft = draft_.context.get();
        if (most > 0) params.draft.n_max = most;
        for (common_params_speculative_ngram_map* map :
             {&params.ngram_simple, &params.ngram_map_k, &params.ngram_map_k4v}) {
            if (match > 0) map->size_n = static_cast<std::uint16_t>(match);
            if (most > 0) map->size_m = static_cast<std::uint16_t>(most);
        }
        return params;
    }

    static llama_tokens guesses(common_speculative* guesser, const llama_tokens& known, llama_token last, int most) {
        llama_tokens guess;
        if (guesser == nullptr || most < 1) return guess;
        common_speculative_draft_params& params = common_speculative_get_draft_params(guesser, sequence);
        params.drafting = true;
        params.n_max = most;
        params.pos0 = static_cast<llama_pos>(known.size());
        params.id_last = last;
        params.prompt = &known;
        params.result = &guess;
        common_speculative_draft(guesser);
        return guess;
    }

    // The guesses that the target agrees with, and its own token after them.
    llama_tokens choose(const llama_tokens& guess) const {
        llama_tokens chosen;
        for (std::size_t row = 0;; ++row) {
            const float* logits = llama_get_logits_ith(target_.context.get(), static_cast<int>(row));
            chosen.push_back(static_cast<llama_token>(std::max_element(logits, logits + vocab_) - logits));
            if (row == guess.size() || chosen.back() != guess[row] || chosen.back() == eos_) return chosen;
        }
    }

    Model target_, draft_;
    int vocab_;
    llama_token eos_, last_ = 0;
    llama_tokens prompt_;
};

std::string answer(Driver& driver, const std::string& line) {
    std::istringstream in(line);
    std::string verb, type;
    int match = 0, most = 0, tokens = 0;
    std::ostringstream out;
    out.precision(9);
    in >> verb;
    if (verb == "read") {
        llama_tokens ids;
        for (llama_token id; in >> id;) ids.push_back(id);
        out << driver.read(ids);
    } else if (verb == "write" && in >> type >> match >> most >> tokens) {
        const Text text = driver.write(type, match, most, tokens);
        out << text.seconds << ' ' << text.draft_seconds << ' ' << text.rounds << ' ' << text.drafted << ' '
            << text.accepted;
        for (const llama_token id : text.ids) out << ' ' << id;
    } else {
        throw std::runtime_error("no such command: " + line);
    }
    return out.str();
}

}  // namespace

int main(int count, char** arguments) {
    if (count != 8) return 2;
    const auto only_errors = [](ggml_log_level level, const char* text, void*) {
        if (level == GGML_LOG_LEVEL_ERROR) std::cerr << text;
    };
    llama_log_set(only_errors, nullptr);
    llama_backend_init();
    try {
        Driver driver(arguments);
        std::cout << driver.about() << std::endl;
        for (std::string line; std::getline(std::cin, line);) {
            try {
                std::cout << answer(driver, line) << std::endl;
            } catch (const std::exception& error) {
                std::cout << "error " << error.what() << std::endl;
            }
        }
    } catch (const std::exception& error) {
        std::cout << "error " << error.what() << std::endl;
        return 1;
    }
}
