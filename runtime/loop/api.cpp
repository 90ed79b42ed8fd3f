// The C functions for Python (ctypes). A function that can fail returns a negative number, with the reason in
// edgedec_loop_error().
#include <algorithm>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>

#include "accelerator.hpp"
#include "auto.hpp"
#include "model.hpp"
#include "policies.hpp"
#include "rounds.hpp"
#include "table.hpp"

#define EDGEDEC_API extern "C" __attribute__((visibility("default")))

namespace {

using namespace edgedec;

constexpr int kNoToken = -2;

thread_local std::string last_error;

// Calls a function and returns its result; -1 after an error, -2 if a row's logits give no token.
template <class Function>
int64_t guarded(const Function& function) {
    try {
        return function();
    } catch (const NoToken&) {
        last_error = "the logits give no token";
        return kNoToken;
    } catch (const std::exception& error) {
        last_error = error.what();
        return -1;
    }
}

void check(bool fits, const std::string& message) {
    if (!fits) throw std::invalid_argument(message);
}

void check_text(Text text) { check(text.ids && text.length >= 1, "a text must have at least one token"); }

void check_sampling(const SamplingOptions& options, int64_t vocab) {
    check(options.vocab_limit >= 1 && vocab >= 1, "a row must have at least one logit");
    check(options.biases >= 0 && options.temperature >= 0, "the sampling options are out of range");
}

// Returns the tree of n nodes, whose parents precede their children and whose paths have at most `depth` guesses.
Tree tree_of(const int32_t* tokens, const int32_t* parents, int64_t n, int64_t depth) {
    check(n >= 1 && n <= kMostNodes, "a tree must have 1 to 64 nodes, not " + std::to_string(n));
    int64_t depths[kMostNodes] = {};
    for (int64_t node = 0; node < n; ++node) {
        check(node ? parents[node] >= 0 && parents[node] < node : parents[0] == -1,
              "node " + std::to_string(node) + " of a tree cannot have the parent " + std::to_string(parents[node]));
        if (node) depths[node] = depths[parents[node]] + 1;
        check(depths[node] <= depth, "a path of the tree is longer than " + std::to_string(depth) + " guesses");
    }
    return {Tokens(tokens, tokens + n), Tokens(parents, parents + n)};
}

void check_levels(Levels levels, int64_t nodes) {
    int64_t above = 1, total = 1;
    const int32_t* place = levels.places;
    for (int64_t level = 0; level < levels.count; ++level) {
        check(levels.sizes[level] >= 1 && (total += levels.sizes[level]) <= nodes, "the levels have too many nodes");
        for (const int32_t* end = place + levels.sizes[level]; place < end; ++place)
            check(*place >= 0 && *place < above, "a place of a level has no parent in the level above");
        above = levels.sizes[level];
    }
}

void check_measured(const Measured& measured, int64_t depth) {
    check(measured.accept && measured.ranks >= 1 && depth <= measured.depths, "a level of the tree has no measured acceptance");
    for (int64_t at = 0; at < measured.depths * measured.ranks; ++at)
        check(measured.accept[at] >= 0 && measured.accept[at] <= 1, "a measured acceptance must be from 0 to 1");
}

void check_policy(int64_t number, int64_t nodes, int64_t depth, Levels levels, const Measured& measured, const double* costs) {
    check(number >= 0 && number <= static_cast<int64_t>(Policy::hardware), "there is no such tree policy");
    check(nodes >= 1 && nodes <= kMostNodes && depth >= 0, "a tree must have 1 to 64 nodes");
    const auto policy = static_cast<Policy>(number);
    if (policy == Policy::levels) check_levels(levels, nodes);
    if (policy == Policy::delayed || policy == Policy::hardware) check_measured(measured, depth);
    if (policy != Policy::hardware) return;
    check(measured.memory, "the policy hardware must have a memory");
    for (int64_t rows = 1; costs && rows <= nodes; ++rows) check(costs[rows] >= 0, "the seconds of a pass must be 0 or more");
}

void check_target(const TargetArguments& target) {
    check(target.vocab >= 1 && target.width >= 1 && target.block_rows >= 1 && target.rows >= 1,
          "the sizes of the target are out of range");
    check(target.kinds >= 1 && target.table_stride >= 0 && target.block_stride >= 0, "the tables of blocks are out of range");
    const bool ternary = target.stored == static_cast<int64_t>(Stored::ternary);
    const bool scaled = target.stored == static_cast<int64_t>(Stored::int8) || (ternary && !target.group);
    check(target.stored >= 0 && target.stored <= static_cast<int64_t>(Stored::ternary) && (!scaled || target.scales),
          "the embedding has no such type");
    check(!ternary || (target.planes >= 1 && target.planes <= kMostPlanes && target.row_bytes >= (target.width + 3) / 4 &&
                       target.group >= 0 && target.group % 32 == 0 && (!target.tied || target.group)),
          "the planes of the embedding are out of range");
    check(!target.commit || (target.slots && target.states && target.state_numbers && target.state_count >= 0 &&
                         target.table_floats >= 0 && target.slot_floats >= 0 && target.slot_rows >= 1 && target.slot_count >= 1),
          "the slots of the recurrent states are out of range");
}

void check_coupling(int64_t coupling, const SamplingOptions* options) {
    check(coupling >= 0 && coupling <= static_cast<int64_t>(Coupling::random) && (!coupling || options), "there is no such coupling");
}

}  // namespace

// Version of the structures and signatures. Increase it with every change of them.
EDGEDEC_API int32_t edgedec_loop_abi() { return 20; }

// Sizes of structures, which Python compares with its own: kind 0 of a target, 1 of a text, 2 of both, 3 of a draft model, 4 of
// `auto`, 5 of its candidates, 6 of an accelerator.
EDGEDEC_API int64_t edgedec_loop_arguments_size(int64_t kind) {
    constexpr size_t kSizes[] = {sizeof(TargetArguments), sizeof(TextArguments), sizeof(RoundsArguments),
                                 sizeof(ModelArguments),  sizeof(AutoArguments), sizeof(AutoCandidate), sizeof(AcceleratorArguments)};
    return static_cast<int64_t>(kSizes[kind]);
}

EDGEDEC_API const char* edgedec_loop_error() { return last_error.c_str(); }

EDGEDEC_API int64_t edgedec_loop_context_key(const int32_t* ids, int64_t count) { return context_key(ids, count); }

// Opens a draft: kind 0 `ngram` and 1 `copy` of `size` positions, 2 `stand` and 3 `trigram` of `size` entries.
EDGEDEC_API void* edgedec_loop_draft_open(int64_t kind, int64_t vocab, int64_t size, int64_t depth) {
    constexpr decltype(&open_ngram) kKinds[] = {open_ngram, open_copy, open_stand, open_trigram};
    void* draft = nullptr;
    guarded([&] {
        check(kind >= 0 && kind < 4 && vocab >= 1 && size >= 0 && depth >= 0, "a draft cannot have these sizes");
        draft = kKinds[kind](vocab, size, depth).release();
        return 0;
    });
    return draft;
}

// Opens the draft `model`; null after an error. The arguments stay the caller's.
EDGEDEC_API void* edgedec_loop_model_open(ModelArguments* arguments, int64_t vocab, int64_t depth) {
    void* draft = nullptr;
    guarded([&] {
        check_target(*arguments->target);
        check(!arguments->target->commit, "a draft model must have no recurrent states");
        check(vocab >= 1 && depth >= 0 && arguments->ids >= 1 && arguments->ids <= arguments->target->vocab && arguments->end >= 0 &&
                  arguments->rows >= 1 && arguments->rows <= std::min(kMaskBits, arguments->target->rows),
              "a draft model cannot have these sizes");
        draft = open_model(arguments, vocab, depth).release();
        return 0;
    });
    return draft;
}

// Opens the draft `auto` over other drafts, which it does not own; null after an error. The arguments stay the caller's.
EDGEDEC_API void* edgedec_loop_auto_open(AutoArguments* arguments, int64_t vocab, int64_t depth) {
    void* draft = nullptr;
    guarded([&] {
        check(arguments && arguments->candidates && arguments->count >= 1, "auto must have at least one candidate");
        check(vocab >= 1 && depth >= 0, "a draft cannot have these sizes");
        check(arguments->drafting >= -1 && arguments->drafting < arguments->count, "auto cannot choose a candidate that it does not have");
        for (int64_t at = 0; at < arguments->count; ++at) {
            const Draft* candidate = arguments->candidates[at].draft;
            check(candidate, "candidate " + std::to_string(at) + " of auto has no draft");
            check(candidate->vocab <= vocab && candidate->depth >= depth,
                  "candidate " + std::to_string(at) + " of auto has a larger vocabulary, or guesses less deep than auto");
            check(arguments->candidates[at].calls >= 0, "candidate " + std::to_string(at) + " of auto has a negative number of calls");
        }
        draft = open_auto(arguments, vocab, depth).release();
        return 0;
    });
    return draft;
}

EDGEDEC_API void edgedec_loop_draft_close(void* draft) { delete static_cast<Draft*>(draft); }

// Writes the guesses after each of `count` nodes, at most 16 of each, to ids and probs [count, 16], and their numbers to sizes.
EDGEDEC_API int64_t edgedec_loop_draft_expand(void* handle, const int32_t* ids, int64_t length, const int32_t* tokens,
                                              const int32_t* parents, int64_t n, const int32_t* nodes, int64_t count,
                                              int32_t* guess_ids, float* guess_probs, int32_t* sizes) {
    return guarded([&] {
        Draft& draft = *static_cast<Draft*>(handle);
        const Text text{ids, length};
        check_text(text);
        const Tree tree = tree_of(tokens, parents, n, kMostNodes);
        draft.meet(text, nullptr);
        Tokens path;
        std::vector<Guesses> guesses;
        for (int64_t at = 0; at < count; ++at) {
            check(nodes[at] >= 0 && nodes[at] < n, "node " + std::to_string(nodes[at]) + " is not in the tree");
            sizes[at] = 0;
            tree.path_to(nodes[at], path);
            if (static_cast<int64_t>(path.size()) >= draft.depth) continue;
            draft.expand(text, tree, {nodes[at]}, guesses);
            sizes[at] = static_cast<int32_t>(guesses[0].size());
            for (size_t place = 0; place < guesses[0].size(); ++place) {
                guess_ids[static_cast<size_t>(at) * kMostGuesses + place] = guesses[0][place].id;
                guess_probs[static_cast<size_t>(at) * kMostGuesses + place] = guesses[0][place].prob;
            }
        }
        return 0;
    });
}

// `accepted` has the tokens of the path from the root on; `top_ids` and `top_probs` [m, k] may be null.
EDGEDEC_API int64_t edgedec_loop_draft_observe(void* handle, const int32_t* accepted, int64_t m, int32_t next,
                                               const float* top_ids, const float* top_probs, int64_t k) {
    return guarded([&] {
        check(m >= 1 && (!top_ids || (k >= 0 && k <= kTop)), "an outcome must have an accepted root, and at most 10 likeliest tokens");
        std::vector<TopTokens> tops(top_ids ? static_cast<size_t>(m) : 0);
        for (int64_t at = 0; at < static_cast<int64_t>(tops.size()) * k; ++at)
            tops[static_cast<size_t>(at / k)].push_back({static_cast<int32_t>(top_ids[at]), top_probs[at]});
        static_cast<Draft*>(handle)->observe(Tokens(accepted, accepted + m), next, tops);
        return 0;
    });
}

// Opens the memory of a tree policy. `clock` returns seconds; null: the steady clock.
EDGEDEC_API void* edgedec_loop_memory_open(double (*clock)()) {
    void* memory = nullptr;
    guarded([&] {
        memory = new TreeMemory(clock);
        return 0;
    });
    return memory;
}

EDGEDEC_API void edgedec_loop_memory_close(void* memory) { delete static_cast<TreeMemory*>(memory); }

// Grows a tree after a text, writes it to tokens and parents [nodes], and returns its number of nodes. `options` may be null
// without coupling. `accept` [depths, ranks] and `memory` are members of Measured; they may be null, as `costs` [nodes + 1] may
// be, where policy and draft have no use for them.
EDGEDEC_API int64_t edgedec_loop_grow(void* draft, const int32_t* ids, int64_t length, int64_t policy, int64_t nodes,
                                      int64_t depth, const int32_t* level_sizes, int64_t level_count, const int32_t* places,
                                      int64_t coupling, const SamplingOptions* options, int64_t dropped, const float* accept,
                                      int64_t depths, int64_t ranks, void* memory, const double* costs, int32_t* tokens,
                                      int32_t* parents) {
    return guarded([&] {
        const Text text{ids, length};
        const Levels levels{level_sizes, level_count, places};
        const Measured measured{accept, depths, ranks, static_cast<TreeMemory*>(memory)};
        check_text(text);
        check_policy(policy, nodes, depth, levels, measured, costs);
        check_coupling(coupling, options);
        Growth growth(static_cast<Draft*>(draft));
        const SamplingOptions none{};
        Sampler sampler(options ? *options : none);
        growth.couple(static_cast<Coupling>(coupling), &sampler, dropped);
        const Tree& tree = growth.grow(static_cast<Policy>(policy), text, nodes, depth, levels, measured, costs);
        std::copy(tree.tokens.begin(), tree.tokens.end(), tokens);
        std::copy(tree.parents.begin(), tree.parents.end(), parents);
        return tree.size();
    });
}

// Writes the distribution after a text to probs [vocab].
EDGEDEC_API int64_t edgedec_loop_distribution(const SamplingOptions* options, float* logits, int64_t vocab, const int32_t* ids,
                                              int64_t length, float* probs) {
    return guarded([&] {
        check_sampling(*options, vocab);
        Sampler(*options).distribution({logits, vocab}, {ids, length}, {}, probs);
        return 0;
    });
}

// Accepts a path of a tree, writes its nodes to path [n] and their number to path_size, and returns the next token.
EDGEDEC_API int64_t edgedec_loop_verify(const SamplingOptions* options, const int32_t* tokens, const int32_t* parents, int64_t n,
                                        float* logits, int64_t vocab, const int32_t* ids, int64_t length, int64_t position,
                                        int32_t* path, int64_t* path_size) {
    return guarded([&] {
        check_sampling(*options, vocab);
        check_text({ids, length});
        const Tree tree = tree_of(tokens, parents, n, kMostNodes);
        Sampler sampler(*options);
        Tokens accepted;
        const int32_t token = verify(sampler, tree, {logits, vocab}, {ids, length}, position, accepted, nullptr);
        std::copy(accepted.begin(), accepted.end(), path);
        *path_size = static_cast<int64_t>(accepted.size());
        return static_cast<int64_t>(token);
    });
}

namespace {

void check_text_arguments(const TextArguments& arguments, const TargetArguments& target) {
    const int64_t vocab = target.vocab;
    check_text({arguments.text, arguments.length});
    check_policy(arguments.policy, arguments.nodes, arguments.depth, arguments.levels, arguments.measured, arguments.pass_costs);
    check_coupling(arguments.coupling, arguments.sampling);
    check_sampling(*arguments.sampling, vocab);
    check(arguments.held >= 0, "the number of blocks is out of range");
    check(arguments.nodes <= arguments.result_nodes, "the results have no room for the nodes of a tree");
    check(arguments.length <= arguments.positions + 1, "the text is longer than its positions");
    check(!target.commit || (arguments.slot >= 0 && arguments.slot < target.slot_count),
          "the text has no slot for its recurrent states");
    check(!target.commit || arguments.nodes <= target.slot_rows, "the slots have no room for the nodes of a tree");
    for (int64_t at = std::max<int64_t>(0, arguments.length - 1); at < arguments.length; ++at)
        check(arguments.text[at] >= 0 && arguments.text[at] < vocab, "the last token of the text is not in the vocabulary");
}

void check_rounds(const RoundsArguments& arguments) {
    check_target(*arguments.target);
    check(arguments.count >= 1 && arguments.most_rounds <= kMostRounds,
          "a call must have at least one text, and at most 32 rounds");
    int64_t rows = 0;
    for (int64_t at = 0; at < arguments.count; ++at) {
        check_text_arguments(*arguments.texts[at], *arguments.target);
        rows += arguments.texts[at]->nodes;
    }
    check(rows <= arguments.target->rows, "the trees may have more rows than a pass");
}

}  // namespace

// Runs rounds; see RoundsArguments.
EDGEDEC_API int64_t edgedec_loop_rounds(const RoundsArguments* arguments) {
    return guarded([&] {
        check_rounds(*arguments);
        run_rounds(*arguments);
        return 0;
    });
}

EDGEDEC_API void* edgedec_loop_follower_open() { return new Follower; }

EDGEDEC_API void edgedec_loop_follower_close(void* follower) { delete static_cast<Follower*>(follower); }

// Prepares the follower of a call, which then runs in another thread.
EDGEDEC_API void edgedec_loop_begin(void* follower) { static_cast<Follower*>(follower)->begin(); }

// Returns the number of rounds that have finished, once it is more than `taken` or the call has ended.
EDGEDEC_API int64_t edgedec_loop_follow(void* follower, int64_t taken) { return static_cast<Follower*>(follower)->follow(taken); }

// Announces that the call has ended.
EDGEDEC_API void edgedec_loop_end(void* follower) { static_cast<Follower*>(follower)->end(); }

// Lets the call begin no further round.
EDGEDEC_API void edgedec_loop_stop(void* follower) { static_cast<Follower*>(follower)->stop(); }

// Returns once the call has ended, which begins no further round.
EDGEDEC_API void edgedec_loop_halt(void* follower) { static_cast<Follower*>(follower)->halt(); }

// Checks the arguments of an accelerator, which `submit`, `wait`, `move` and `settle` then take.
EDGEDEC_API int64_t edgedec_loop_accelerator_check(const AcceleratorArguments* arguments) {
    return guarded([&] {
        const char* fault = accelerator_fault(*arguments);
        check(!fault, std::string("accelerator: ") + (fault ? fault : ""));
        return 0;
    });
}

// Returns whether programs may make the host's cache agree with memory by instructions.
EDGEDEC_API int64_t edgedec_loop_cache_instructions() { return kCacheInstructions; }

EDGEDEC_API int32_t edgedec_loop_accelerator_submit(void* session, int64_t rows, int64_t results) {
    return accelerator_submit(session, rows, results);
}

EDGEDEC_API int32_t edgedec_loop_accelerator_wait(void* session) { return accelerator_wait(session); }

EDGEDEC_API int32_t edgedec_loop_accelerator_move(const int64_t* numbers, int64_t count, void* session, const int32_t* blocks,
                                                  int64_t stride, int64_t held, int64_t start, const int32_t* nodes, int64_t rows) {
    return accelerator_move(numbers, count, session, blocks, stride, held, start, nodes, rows);
}

EDGEDEC_API void edgedec_loop_accelerator_settle(void* cache) { accelerator_settle(cache); }
