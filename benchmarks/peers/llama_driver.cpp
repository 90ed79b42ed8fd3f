// Times single passes of llama.cpp, which llama-bench does not: n tokens over a past, with the logits of every row.
// The context's settings are those of llama-bench: defaults, and a thread pool that stays for all passes.
//
//     driver MODEL THREADS CONTEXT HUGE_PAGES
//
// It compiles with llama.cpp and with its relatives, some of which have an older interface: PEER_HAS_name is defined if the header
// declares the function `name`. HUGE_PAGES 1 asks the program for huge pages, if it has them as an option of its own.
//
// Then one command a line, one answer a line; the answer to a line that went wrong begins with "error".
//     pass ROWS PAST EVERY REPEATS    seconds of each repeat; EVERY 1: logits of all rows, 0: of the last
//     decode PAST TOKENS              seconds of a greedy text of TOKENS tokens, argmax included
//     cpu                             seconds of CPU time of the process so far, all threads together
//     logits FILE                     writes those of the last row of the last pass, float32

#include <algorithm>
#include <chrono>
#include <ctime>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#ifdef PEER_HAS_ggml_threadpool_new
#include "ggml-cpu.h"
#endif
#include "llama.h"

namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point began) { return std::chrono::duration<double>(Clock::now() - began).count(); }

// Sets the option for huge pages. Returns whether there is one.
template <class Params>
auto set_huge_pages(Params& params, int) -> decltype(params.use_thp = true, bool()) {
    return params.use_thp = true;
}
template <class Params>
bool set_huge_pages(Params&, long) {
    return false;
}

class Driver {
   public:
    Driver(const char* path, int threads, int positions, bool huge_pages) {
        llama_model_params model_params = llama_model_default_params();
        model_params.n_gpu_layers = 0;
        if (huge_pages && !set_huge_pages(model_params, 0)) throw std::runtime_error("there is no option for huge pages");
#ifdef PEER_HAS_llama_model_load_from_file
        model_ = llama_model_load_from_file(path, model_params);
#else
        model_ = llama_load_model_from_file(path, model_params);
#endif
        if (model_ == nullptr) throw std::runtime_error("the model cannot be loaded");
        llama_context_params params = llama_context_default_params();
        params.n_ctx = static_cast<std::uint32_t>(positions);
        params.n_threads = params.n_threads_batch = threads;
#ifdef PEER_HAS_llama_init_from_model
        context_ = llama_init_from_model(model_, params);
#else
        context_ = llama_new_context_with_model(model_, params);
#endif
        if (context_ == nullptr) throw std::runtime_error("no context");
#ifdef PEER_HAS_ggml_threadpool_new
        ggml_threadpool_params pool = ggml_threadpool_params_default(threads);
        llama_attach_threadpool(context_, ggml_threadpool_new(&pool), nullptr);
#endif
#ifdef PEER_HAS_llama_vocab_n_tokens
        vocab_ = llama_vocab_n_tokens(llama_model_get_vocab(model_));
#else
        vocab_ = llama_n_vocab(model_);
#endif
        batch_ = llama_batch_init(positions, 0, 1);
    }

    std::string about() const {
        char name[128];
        llama_model_desc(model_, name, sizeof name);
        std::ostringstream out;
#ifdef PEER_HAS_llama_version
        const char* version = llama_version();
#else
        const char* version = "without a version";
#endif
        out << llama_model_size(model_) << '\t' << name << '\t' << version << '\t' << llama_print_system_info();
        return out.str();
    }

    std::vector<double> pass(int rows, int past, bool every, int repeats) {
        fill(past);
        std::vector<double> seconds;
        for (int at = 0; at < repeats; ++at) {
            cut(past);
            put(rows, past, every);
            const auto began = Clock::now();
            run();
            seconds.push_back(since(began));
        }
        return seconds;
    }

    double decode(int past, int tokens) {
        fill(past);
        cut(past);
        llama_token next = id(past);
        const auto began = Clock::now();
        for (int at = 0; at < tokens; ++at) {
            put(1, past + at, true);
            batch_.token[0] = next;
            run();
            const float* logits = llama_get_logits_ith(context_, 0);
            next = static_cast<llama_token>(std::max_element(logits, logits + vocab_) - logits);
        }
        const double seconds = since(began);
        cut(past);
        return seconds;
    }

    void logits(const std::string& file) const {
        const float* row = llama_get_logits_ith(context_, -1);
        if (row == nullptr) throw std::runtime_error("there was no pass");
        std::ofstream(file, std::ios::binary)
            .write(reinterpret_cast<const char*>(row), static_cast<std::streamsize>(sizeof(float)) * vocab_);
    }

   private:
    // The text of every measurement; benchmarks/support/shapes.py has the same line.
    llama_token id(int at) const { return static_cast<llama_token>((std::int64_t{at} * 7919 + 13) % vocab_); }

    void cut(int past) {
#if defined(PEER_HAS_llama_memory_seq_rm)
        const bool done = llama_memory_seq_rm(llama_get_memory(context_), 0, past, -1);
#elif defined(PEER_HAS_llama_kv_self_seq_rm)
        const bool done = llama_kv_self_seq_rm(context_, 0, past, -1);
#else
        const bool done = llama_kv_cache_seq_rm(context_, 0, past, -1);
#endif
        if (!done) throw std::runtime_error("cannot truncate");
        length_ = std::min(length_, past);
    }

    // Bring the cache to at least `past` tokens of the text; what a greedy text left there has been cut.
    void fill(int past) {
        if (length_ >= past) return;
        cut(0);
        put(past, 0, false);
        run();
    }

    void put(int rows, int past, bool every) {
        batch_.n_tokens = rows;
        for (int row = 0; row < rows; ++row) {
            batch_.token[row] = id(past + row);
            batch_.pos[row] = past + row;
            batch_.n_seq_id[row] = 1;
            batch_.seq_id[row][0] = 0;
            batch_.logits[row] = every || row == rows - 1;
        }
    }

    void run() {
        if (const int code = llama_decode(context_, batch_))
            throw std::runtime_error("llama_decode gave " + std::to_string(code));
        llama_synchronize(context_);
        length_ = batch_.pos[batch_.n_tokens - 1] + 1;
    }

    llama_model* model_;
    llama_context* context_;
    llama_batch batch_;
    int vocab_;
    int length_ = 0;  // tokens in the cache
};

std::string answer(Driver& driver, const std::string& line) {
    std::istringstream in(line);
    std::string verb, file;
    int rows = 0, past = 0, every = 0, repeats = 0;
    std::ostringstream out;
    out.precision(9);
    in >> verb;
    if (verb == "pass" && in >> rows >> past >> every >> repeats) {
        for (double seconds : driver.pass(rows, past, every != 0, repeats)) out << seconds << ' ';
    } else if (verb == "decode" && in >> past >> repeats) {
        out << driver.decode(past, repeats);
    } else if (verb == "cpu") {
        out << static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
    } else if (verb == "logits" && std::getline(in >> std::ws, file)) {
        driver.logits(file);
        out << "written";
    } else {
        throw std::runtime_error("no such command: " + line);
    }
    return out.str();
}

}  // namespace

int main(int count, char** arguments) {
    if (count != 5) return 2;
    llama_log_set([](ggml_log_level level, const char* text, void*) {
        if (level == GGML_LOG_LEVEL_ERROR) std::cerr << text;
    }, nullptr);
    llama_backend_init();
    try {
        Driver driver(arguments[1], std::atoi(arguments[2]), std::atoi(arguments[3]), arguments[4][0] == '1');
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
