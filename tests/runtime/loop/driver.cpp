// Calls every function of the compiled loop with pseudo-random arguments, good ones and bad ones, and prints its results. The
// output is the same on every processor. Tests run it with sanitizers, and for AArch64 in an emulator.
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "accelerator.hpp"
#include "auto.hpp"
#include "rounds.hpp"

extern "C" {
const char* edgedec_loop_error();
void* edgedec_loop_draft_open(int64_t kind, int64_t vocab, int64_t size, int64_t depth);
void* edgedec_loop_auto_open(edgedec::AutoArguments* arguments, int64_t vocab, int64_t depth);
void edgedec_loop_draft_close(void* draft);
int64_t edgedec_loop_draft_expand(void*, const int32_t*, int64_t, const int32_t*, const int32_t*, int64_t, const int32_t*, int64_t,
                                  int32_t*, float*, int32_t*);
int64_t edgedec_loop_draft_observe(void*, const int32_t*, int64_t, int32_t, const float*, const float*, int64_t);
void* edgedec_loop_memory_open(double (*clock)());
void edgedec_loop_memory_close(void* memory);
int64_t edgedec_loop_grow(void*, const int32_t*, int64_t, int64_t, int64_t, int64_t, const int32_t*, int64_t, const int32_t*,
                          int64_t, const edgedec::SamplingOptions*, int64_t, const float*, int64_t, int64_t, void*, const double*,
                          int32_t*, int32_t*);
int64_t edgedec_loop_distribution(const edgedec::SamplingOptions*, float*, int64_t, const int32_t*, int64_t, float*);
int64_t edgedec_loop_verify(const edgedec::SamplingOptions*, const int32_t*, const int32_t*, int64_t, float*, int64_t,
                            const int32_t*, int64_t, int64_t, int32_t*, int64_t*);
int64_t edgedec_loop_rounds(const edgedec::RoundsArguments*);
}

namespace {

constexpr int64_t kVocab = 41, kNodes = 16, kPositions = 96, kWidth = 5, kBlockRows = 16;

uint64_t state = 1;

// A number from 0 to n - 1.
int64_t number(int64_t n) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return static_cast<int64_t>(state >> 11) % n;
}

float logit() { return static_cast<float>(number(2000) - 1000) / 125.0f; }

uint64_t digest = 14695981039346656037u;

void put(const void* data, size_t bytes) {
    for (size_t at = 0; at < bytes; ++at) digest = (digest ^ static_cast<const unsigned char*>(data)[at]) * 1099511628211u;
}

void put(int64_t value) { put(&value, sizeof(value)); }

void show(const char* name) { std::printf("%s %016llx\n", name, static_cast<unsigned long long>(digest)); }

edgedec::SamplingOptions options(const int32_t* ids, const double* values) {
    edgedec::SamplingOptions sampling{};
    const double temperatures[] = {0.0, 0.1, 0.8, 2.0, 1e-30};
    sampling.temperature = temperatures[number(5)];
    sampling.top_p = number(2) ? 1.0 : static_cast<double>(number(100)) / 100;
    sampling.min_p = number(2) ? 0.0 : static_cast<double>(number(100)) / 100;
    sampling.repeat_penalty = number(2) ? 1.0 : 1.3;
    sampling.presence_penalty = number(2) ? 0.0 : 0.4;
    sampling.frequency_penalty = number(2) ? 0.0 : -0.2;
    sampling.top_k = number(3) * 7;
    sampling.repeat_last_n = number(40) - 1;
    sampling.vocab_limit = 1 + number(2 * kVocab);
    sampling.biases = number(3);
    sampling.bias_ids = ids;
    sampling.bias_values = values;
    sampling.seed = static_cast<uint64_t>(number(1000));
    sampling.sample = static_cast<uint64_t>(number(3));
    return sampling;
}

struct Shape {
    int32_t sizes[3] = {2, 3, 2};
    int32_t places[7] = {0, 0, 0, 0, 1, 2, 0};
};

// A clock that goes on with each reading, so that choices are the same on every processor.
double tick() {
    static double seconds = 0;
    return seconds += static_cast<double>(number(40)) * 1e-5;
}

constexpr int64_t kAuto = 5;

// A draft of a kind of edgedec_loop_draft_open, or `auto` over some of them. It is null if it was refused.
class Opened {
  public:
    Opened(int64_t kind, int64_t size, int64_t depth) {
        if (kind != kAuto) {
            draft_ = edgedec_loop_draft_open(kind, kVocab, size, depth);
            return;
        }
        choice_.candidates = candidates_;
        choice_.count = number(5);
        choice_.drafting = number(20) ? -1 : number(4);
        choice_.clock = tick;
        for (edgedec::AutoCandidate& one : candidates_) {
            const int64_t deeper = number(60) ? number(3) : -1, of = number(4);
            one.draft = number(60) ? static_cast<edgedec::Draft*>(edgedec_loop_draft_open(of, kVocab, size, depth + deeper)) : nullptr;
            one.right = 0.5;
            one.unseen = number(14);
        }
        draft_ = edgedec_loop_auto_open(number(60) ? &choice_ : nullptr, kVocab, depth);
    }
    ~Opened() {
        edgedec_loop_draft_close(draft_);
        for (const edgedec::AutoCandidate& one : candidates_) edgedec_loop_draft_close(one.draft);
    }
    Opened(const Opened&) = delete;
    Opened& operator=(const Opened&) = delete;

    void* draft() const { return draft_; }

    // Puts what `auto` has observed.
    void show_choice() const {
        put(choice_.drafting);
        put(choice_.outcomes);
        for (const edgedec::AutoCandidate& one : candidates_) {
            put(&one.right, sizeof(double));
            put(one.judged);
            put(one.seconds, sizeof(one.seconds));
            put(one.calls);
            put(one.unseen);
            put(one.guess);
        }
    }

  private:
    void* draft_ = nullptr;
    edgedec::AutoCandidate candidates_[4] = {};
    edgedec::AutoArguments choice_{};
};

// Measurements for policies: good numbers, seldom bad ones.
struct Measures {
    static constexpr int64_t kDepths = 9, kRanks = 8;
    float accept[kDepths * kRanks];
    double costs[kNodes + 1], step = static_cast<double>(number(3)) / 4096;
    int64_t depths = number(20) ? kDepths : number(kDepths);
    void* memory = number(10) ? edgedec_loop_memory_open(tick) : nullptr;

    Measures() {
        for (float& value : accept) value = static_cast<float>(number(65)) / 64;
        if (number(30) == 0) accept[0] = number(2) ? 1.5f : std::numeric_limits<float>::quiet_NaN();
        for (int64_t rows = 0; rows <= kNodes; ++rows) costs[rows] = step * static_cast<double>(1 + number(rows + 1));
        if (number(20) == 0) costs[1 + number(kNodes)] = -1.0;
    }
    ~Measures() { edgedec_loop_memory_close(memory); }
    Measures(const Measures&) = delete;
    Measures& operator=(const Measures&) = delete;
};

void drafts() {
    for (int64_t kind = -1; kind <= kAuto; ++kind) {
        for (int64_t trial = 0; trial < 12; ++trial) {
            const int64_t size = number(2) ? kPositions : number(4), depth = number(9);
            const Opened opened(kind, size, depth);
            void* draft = opened.draft();
            put(draft != nullptr);
            if (!draft) continue;
            std::vector<int32_t> text(static_cast<size_t>(1 + number(kPositions)));
            for (auto& id : text) id = number(30) ? static_cast<int32_t>(number(6)) : -1;
            const Measures measures;
            for (int64_t round = 0; round < 20; ++round) {
                int32_t tokens[64], parents[64], nodes[64], ids[64 * 16], sizes[64];
                float probs[64 * 16], top_ids[64 * 10], top_probs[64 * 10];
                const Shape shape;
                const int32_t biased[] = {3, 4};
                const double biases[] = {0.5, -1.0};
                edgedec::SamplingOptions sampling = options(biased, biases);
                const int64_t coupling = number(3) ? 0 : number(5) - 1;
                // The order in which arguments are evaluated depends on the processor, so no call has two numbers.
                const int64_t policy = number(7) - 1, levels = number(4), deepest = number(10);
                const int64_t most = policy == 4 ? 1 + number(kNodes) : number(80) - 2;  // `costs` has no more rows
                const double* costs = number(4) ? measures.costs : nullptr;
                int64_t n = edgedec_loop_grow(draft, text.data(), static_cast<int64_t>(text.size()), policy, most, deepest,
                                              shape.sizes, levels, shape.places, coupling, number(9) ? &sampling : nullptr, round,
                                              measures.accept, measures.depths, Measures::kRanks, measures.memory, costs, tokens,
                                              parents);
                put(n);
                if (n < 1) {  // refused: a tree of its own, which may be none
                    n = 1 + number(10);
                    for (int64_t at = 0; at < n; ++at) {
                        tokens[at] = static_cast<int32_t>(number(8));
                        parents[at] = at ? static_cast<int32_t>(number(number(9) ? at : at + 1)) : -1;
                    }
                }
                put(tokens, 4 * static_cast<size_t>(n));
                put(parents, 4 * static_cast<size_t>(n));
                const int64_t count = 1 + number(6);
                for (int64_t at = 0; at < count; ++at) nodes[at] = static_cast<int32_t>(number(number(20) ? n : n + 1));
                const int64_t result = edgedec_loop_draft_expand(draft, text.data(), static_cast<int64_t>(text.size()), tokens, parents,
                                                                 n, nodes, count, ids, probs, sizes);
                put(result);
                for (int64_t at = 0; at < count && !result; ++at) {
                    put(sizes[at]);
                    put(ids + 16 * at, 4 * static_cast<size_t>(sizes[at]));
                    put(probs + 16 * at, 4 * static_cast<size_t>(sizes[at]));
                }
                const int64_t m = number(4);
                for (int64_t at = 0; at < 40; ++at) {
                    top_ids[at] = static_cast<float>(number(kVocab + 3) - 1);
                    top_probs[at] = static_cast<float>(number(5)) / 4;
                }
                const auto next = static_cast<int32_t>(number(8));
                const bool known = number(2) != 0;
                tokens[0] = text.back();
                put(edgedec_loop_draft_observe(draft, tokens, m, next, known ? top_ids : nullptr, known ? top_probs : nullptr,
                                               number(12)));
                for (int64_t at = 1; at < m; ++at) text.push_back(tokens[at]);
                text.push_back(next);
                if (number(25) == 0) text.resize(1 + text.size() / 2);
                opened.show_choice();
            }
        }
        show("drafts");
    }
}

void sampling() {
    for (int64_t trial = 0; trial < 400; ++trial) {
        const int32_t ids[] = {static_cast<int32_t>(number(kVocab + 5)), static_cast<int32_t>(number(6) - 2)};
        const double values[] = {static_cast<double>(number(9) - 4), -std::numeric_limits<double>::infinity()};
        edgedec::SamplingOptions sampling = options(ids, values);
        if (number(30) == 0) sampling.vocab_limit = 0;
        float logits[10 * kVocab], probs[kVocab];
        for (float& value : logits) value = logit();
        if (number(8) == 0) logits[number(kVocab)] = number(2) ? std::numeric_limits<float>::quiet_NaN() : -std::numeric_limits<float>::infinity();
        int32_t text[50], tokens[10], parents[10], path[10];
        for (int32_t& id : text) id = static_cast<int32_t>(number(kVocab + 3) - 2);
        const int64_t result = edgedec_loop_distribution(&sampling, logits, kVocab, text, 1 + number(50), probs);
        put(result);
        if (!result) put(probs, sizeof(probs));
        const int64_t n = number(11);
        for (int64_t at = 0; at < n; ++at) {
            tokens[at] = static_cast<int32_t>(number(5));
            parents[at] = at ? static_cast<int32_t>(number(at)) : -1;
        }
        int64_t size = 0;
        put(edgedec_loop_verify(&sampling, tokens, parents, n, logits, kVocab, text, number(50), trial, path, &size));
        put(size);
        put(path, 4 * static_cast<size_t>(size));
        put(logits, sizeof(logits));
    }
    show("sampling");
}

constexpr int64_t kKinds = 2, kTexts = 3, kRows = kTexts * kNodes, kRounds = edgedec::kMostRounds;
constexpr int64_t kSlots = kTexts, kSlotFloats = 6, kTableFloats = 3;

float target_logits[kRows * kVocab];
float embedding[kRows * kWidth];
uint64_t visible[kRows];
int64_t row_positions[kRows], result_rows[kRows], sequences[2 * kRows], texts, failing;

int32_t run(void*, int64_t rows, int64_t results) {
    put(results);
    put(result_rows, 8 * static_cast<size_t>(results));
    put(embedding, sizeof(float) * kWidth * static_cast<size_t>(rows));
    put(visible, 8 * static_cast<size_t>(rows));
    put(row_positions, 8 * static_cast<size_t>(rows));
    put(sequences, 16 * static_cast<size_t>(texts));
    if (failing && number(failing) == 0) return -1;
    for (int64_t at = 0; at < rows * kVocab; ++at) target_logits[at] = static_cast<float>(number(4)) + (at % kVocab < 5 ? 3.0f : 0.0f);
    if (failing && number(failing) == 0) target_logits[0] = std::numeric_limits<float>::infinity();
    return 0;
}

int32_t move(const int64_t*, int64_t, void*, const int32_t* blocks, int64_t stride, int64_t held, int64_t start, const int32_t* nodes,
             int64_t rows) {
    for (int64_t kind = 0; kind < kKinds; ++kind) put(blocks + kind * stride, 4 * static_cast<size_t>(held));
    put(start);
    put(nodes, 4 * static_cast<size_t>(rows));
    return 0;
}

int32_t commit(const int64_t* states, int64_t count, const float* tables, int64_t table_floats, float* slot, int64_t slot_floats,
               int64_t rows, const int32_t* nodes, int64_t node_count) {
    put(states, 8 * static_cast<size_t>(count));
    put(slot - tables - table_floats);
    put(rows);
    put(nodes, 4 * static_cast<size_t>(node_count));
    for (int64_t at = 0; at < slot_floats; ++at) slot[at] += 1.0f;
    return failing && number(8 * failing) == 0 ? -1 : 0;
}

// A text with arrays of its own.
struct DriverText {
    const int32_t ids[2] = {3, 40}, blocks[6 * kKinds] = {0, 1, 2, 3, 4, 5, 5, 4, 3, 2, 1, 0};
    const double values[2] = {0.5, -1.0};
    const Shape shape;
    const Measures measures;
    edgedec::SamplingOptions sampling = options(ids, values);
    int32_t text[kPositions + 1], tree_sizes[kRounds], path_sizes[kRounds];
    int32_t tokens[kRounds * kNodes], parents[kRounds * kNodes], path[kRounds * kNodes];
    double seconds[3][kRounds];
    const Opened opened{number(4) ? number(4) : kAuto, kPositions, 6};
    edgedec::TextArguments arguments{};

    DriverText() {
        arguments.text = text;
        arguments.positions = kPositions;
        arguments.blocks = blocks;
        arguments.draft = number(8) ? static_cast<edgedec::Draft*>(opened.draft()) : nullptr;
        arguments.pass_costs = number(3) ? measures.costs : nullptr;
        arguments.policy = number(5);
        auto* const memory = static_cast<edgedec::TreeMemory*>(measures.memory);
        arguments.measured = {measures.accept, measures.depths, Measures::kRanks, memory};
        arguments.coupling = number(3);
        const int64_t more = number(20) == 0;
        arguments.nodes = arguments.policy == 1 ? 8 : 1 + number(kNodes + more);
        arguments.depth = number(7);
        arguments.levels = {shape.sizes, 3, shape.places};
        arguments.sampling = &sampling;
        arguments.ends = ids;
        arguments.end_count = number(3);
        arguments.result_nodes = kNodes;
        arguments.tree_sizes = tree_sizes;
        arguments.path_sizes = path_sizes;
        arguments.tokens = tokens;
        arguments.parents = parents;
        arguments.path = path;
        arguments.draft_seconds = seconds[0];
        arguments.verify_seconds = seconds[1];
        arguments.commit_seconds = seconds[2];
        arguments.length = number(200) ? 1 + number(30) : 0;
        for (int64_t at = 0; at < arguments.length; ++at) text[at] = number(200) ? static_cast<int32_t>(number(5)) : -1;
    }
    DriverText(const DriverText&) = delete;
    DriverText& operator=(const DriverText&) = delete;

    // Puts the last `rounds` of `it.rounds` rounds.
    void show_rounds(int64_t rounds) const {
        opened.show_choice();
        put(arguments.stop);
        put(arguments.rounds);
        put(arguments.length);
        put(text, 4 * static_cast<size_t>(arguments.length));
        for (int64_t round = arguments.rounds - rounds; round < arguments.rounds; ++round) {
            const int64_t row = round % kRounds;
            put(tokens + row * kNodes, 4 * static_cast<size_t>(tree_sizes[row]));
            put(parents + row * kNodes, 4 * static_cast<size_t>(tree_sizes[row]));
            put(path + row * kNodes, 4 * static_cast<size_t>(path_sizes[row]));
        }
    }
};

void rounds() {
    char name[] = "/tmp/edgedec-loop-XXXXXX";
    const int file = mkstemp(name);
    unlink(name);
    std::vector<unsigned char> rows(static_cast<size_t>(kVocab * kWidth * 4));
    for (auto& byte : rows) byte = static_cast<unsigned char>(number(64));
    if (write(file, rows.data(), rows.size()) != static_cast<ssize_t>(rows.size())) std::abort();
    for (int64_t trial = 0; trial < 200; ++trial) {
        float scales[kVocab];
        for (float& scale : scales) scale = logit();
        int32_t table[6 * kTexts * kKinds];
        double seconds[kRounds], began[kRounds];
        edgedec::TargetArguments target{};
        target.embed = embedding;
        target.width = kWidth;
        target.row_positions = row_positions;
        target.result_rows = result_rows;
        target.visible = visible;
        target.sequences = sequences;
        target.table = table;
        target.logits = target_logits;
        target.vocab = kVocab;
        target.rows = number(10) ? kRows : kNodes;
        target.submit = run;
        target.file = file;
        target.stored = number(6);
        target.planes = number(5);
        target.row_bytes = (kWidth + 3) / 4 + number(3) - 1;
        target.group = 32 * number(3);
        target.tied = number(2);
        target.scales_offset = number(20);
        target.scales = number(20) ? scales : nullptr;
        target.block_rows = kBlockRows;
        target.kinds = kKinds;
        target.table_stride = 6 * kTexts;
        target.block_stride = 6;
        target.move = move;
        int64_t slots[kRows] = {};
        float states[kTableFloats + kSlots * kSlotFloats] = {};
        const int64_t state_numbers[8] = {1, 2, 3, 4, 5, 6, 7, 8};
        if (number(2)) {
            target.slots = slots;
            target.commit = commit;
            target.state_numbers = state_numbers;
            target.state_count = 1;
            target.states = states;
            target.table_floats = kTableFloats;
            target.slot_floats = kSlotFloats;
            target.slot_rows = number(20) ? kNodes + 1 : kNodes / 2;
            target.slot_count = kSlots;
        }
        texts = 1 + number(kTexts);
        std::vector<std::unique_ptr<DriverText>> owners;
        edgedec::TextArguments* addresses[kTexts];
        for (int64_t at = 0; at < texts; ++at) {
            owners.push_back(std::make_unique<DriverText>());
            addresses[at] = &owners.back()->arguments;
            owners.back()->arguments.slot = number(20) ? at : number(2) ? kSlots : -1;
        }
        edgedec::RoundsArguments call{};
        call.target = &target;
        call.texts = addresses;
        call.count = texts;
        call.most_seconds = 1e9;
        const int32_t pause = number(4) == 0;
        call.pause = number(4) ? &pause : nullptr;
        call.pass_seconds = seconds;
        call.pass_began = began;
        failing = number(4) ? 0 : 12;
        for (int64_t number_of_call = 0; number_of_call < 30; ++number_of_call) {
            bool room = true;
            for (const auto& owner : owners) {
                room = room && owner->arguments.length <= kPositions;
                owner->arguments.held = 1 + number(6);
                owner->arguments.most_tokens = 1 + number(20);
            }
            if (!room) break;
            call.most_rounds = number(9);
            const int64_t result = edgedec_loop_rounds(&call);
            put(result);
            if (result) break;
            for (const auto& owner : owners) owner->show_rounds(owner->arguments.rounds);
        }
    }
    close(file);
    show("rounds");
}

// An accelerator whose functions are called. What is queued ends in waits, a commit by itself or with the pass after it; a pass has random
// logits of which it finds the largest.
constexpr int64_t kMostSlots = edgedec::kMostSlots, kPairs = 3, kMostFound = 8, kRowsAt = 4096, kClear = 88, kControl = 80;
int64_t device_registers[64], device_events, device_commits, device_passes;  // the last two are queued
edgedec::AcceleratorArguments device;
std::vector<uint8_t> device_input, device_output;

void find_largest(int64_t row) {
    std::vector<std::pair<int32_t, int32_t>> order;  // negative logit, id
    const int32_t spread = 1 + static_cast<int32_t>(number(30));
    for (int64_t id = 0; id < kVocab; ++id) {
        const auto logit = static_cast<int32_t>(number(spread));
        std::memcpy(device_output.data() + kRowsAt + id * device.row_bytes + 4 * row, &logit, 4);
        order.emplace_back(-logit, static_cast<int32_t>(id));
    }
    std::sort(order.begin(), order.end());
    for (int64_t at = 0; at < device.top_k; ++at) {
        const auto& [negative, id] = order[static_cast<size_t>(at)];
        const int32_t found[2] = {-negative, number(900) ? id : static_cast<int32_t>(kVocab)};
        std::memcpy(device_output.data() + 8 * (device.slots * (1 + at) + row), found, 8);
    }
    for (int64_t column = 0; device.head.codes && column < kWidth; ++column) {
        const auto norm = static_cast<int32_t>(number(1 << 27) - (1 << 26)) >> number(27);
        std::memcpy(device_output.data() + device.head.norm_at + column * device.row_bytes + 4 * row, &norm, 4);
    }
    const int16_t scale[4] = {static_cast<int16_t>(20000 + number(10000)), static_cast<int16_t>(number(9) - 20), 0, 0};
    std::memcpy(device_output.data() + 8 * row, scale, 8);
}

int64_t read_device(int64_t offset) {
    put(offset);
    if (failing && number(60 * failing) == 0) return -1;
    return offset == kClear ? device_events : device_registers[offset / 4];
}

int64_t write_device(int64_t offset, int64_t value) {
    put(offset);
    put(value);
    device_registers[offset / 4] = value;
    if (offset == kClear) device_events &= ~value;
    if (offset == kControl) device_commits += value & device.commit_bit, device_passes += value & device.start_bit;
    return 0;
}

int64_t wait_for_device(double) {
    const bool fails = failing && number(8 * failing) == 0;
    if (device_commits) {
        device_events |= fails ? device.error_bit : device.committed_bit;
        device_passes = fails ? 0 : device_passes;
        device_commits = 0;
        if (fails || number(2)) return number(2);
    }
    if (!device_passes) return 1;
    put(device_input.data(), device_input.size());
    for (int64_t row = 0; row < device.slots; ++row) find_largest(row);
    device_events |= fails ? device.error_bit : device.done_bit;
    device_passes = 0;
    return number(2);
}

void accelerators() {
    for (int64_t trial = 0; trial < 120; ++trial) {
        int32_t table[1], found_ids[kMostSlots * kMostFound], places[1024];
        double wide[kMostSlots * kWidth], seconds[kRounds], began[kRounds];
        int16_t angles[(kPositions + 1) * kPairs * 2];
        uint8_t rows[kVocab * kWidth];
        float scales[kVocab];
        for (auto& angle : angles) angle = static_cast<int16_t>(number(60000) - 30000);
        for (auto& byte : rows) byte = static_cast<uint8_t>(number(256));
        for (float& scale : scales) scale = logit();
        device = {};
        device.slots = 1 + number(kMostSlots);
        device.port_bytes = 4 << number(3);
        for (device.item_bytes = 4; device.item_bytes < 4 * device.slots;) device.item_bytes *= 2;
        device.rows_start = device.item_bytes * number(3);
        device.angles_start[0] = device.rows_start + kWidth * device.item_bytes;
        device_input.assign(static_cast<size_t>(device.angles_start[0] + kPairs * device.item_bytes + 64), 0xEE);
        const int64_t pieces = static_cast<int64_t>(device_input.size()) / device.port_bytes, stride = number(2) ? 1 : pieces - 1;
        for (int64_t at = 0; at < pieces; ++at) places[at] = static_cast<int32_t>(at * stride % pieces * device.port_bytes);
        device.row_bytes = device.item_bytes;
        device_output.assign(static_cast<size_t>(kRowsAt + kVocab * device.row_bytes), 0);
        std::fill_n(device_registers, 64, 0);
        device.embed = wide, device.positions = row_positions, device.visible = visible, device.sequences = sequences;
        device.logits = target_logits, device.found_ids = found_ids;
        device.cache_instructions = number(2) && edgedec::kCacheInstructions;
        device.read = read_device, device.write = write_device, device.wait = wait_for_device;
        device.flush_files.action = device.fetch_files.action = -1;
        device.patience_seconds = 1, device.clock_hz = 1e6, device.scale = 0.5, device.per_unit = 64, device.most = 1 << 20;
        device.parameters_at = 8, device.commit_slots_at = 12, device.position_at = 16, device.mask_at = 48, device.control_at = kControl;
        device.status_at = 84, device.events_at = kClear, device.counters_at = 96, device.committed_shift = 4, device.logits_shift = 24;
        device.start_bit = 1, device.commit_bit = 2, device.latch_bit = 8, device.busy_bits = 1;
        device.done_bit = 1, device.error_bit = 2, device.committed_bit = 4;
        device.input = device_input.data(), device.places = places, device.input_bytes = static_cast<int64_t>(device_input.size());
        device.width = kWidth, device.angles[0] = angles, device.turns = number(2), device.pairs = kPairs;
        device.output = device_output.data(), device.top_k = 1 + number(kMostFound), device.vocab = kVocab, device.ids = kVocab - number(4);
        device.rows_at = kRowsAt, device.likeliest = number(device.top_k + 1), device.written = device.slots;
        int32_t mantissas[kVocab];
        for (int32_t& mantissa : mantissas) mantissa = static_cast<int32_t>(number(1 << 17) - (1 << 16));
        if (number(2)) {  // a rough head, whose tokens are scored again
            const int64_t bytes = kWidth * device.row_bytes, norm_at = kRowsAt + kVocab * device.row_bytes;
            device.head = {reinterpret_cast<const int8_t*>(rows), mantissas, kWidth, number(8), number(24) - 4, norm_at, bytes};
            device_output.resize(static_cast<size_t>(norm_at + bytes));
            device.output = device_output.data();
        }
        if (edgedec::accelerator_fault(device)) std::abort();
        edgedec::TargetArguments target{};
        target.width = kWidth;
        target.row_positions = row_positions, target.result_rows = result_rows, target.visible = visible, target.sequences = sequences;
        target.table = table;
        target.logits = target_logits;
        target.vocab = kVocab, target.rows = device.slots;
        target.submit = edgedec::accelerator_submit, target.wait = edgedec::accelerator_wait, target.move = edgedec::accelerator_move;
        target.settle = edgedec::accelerator_settle;
        target.session = target.cache = &device;
        target.scales = scales;
        target.block_rows = kPositions, target.kinds = target.table_stride = target.block_stride = 1;
        target.stored_rows = rows, target.wide_embed = wide;
        target.found_ids = found_ids, target.found = &device.found, target.seconds = &device.seconds;
        DriverText owner;
        owner.arguments.held = 1;
        owner.arguments.nodes = std::min(owner.arguments.nodes, device.slots);
        owner.arguments.most_tokens = 200;
        edgedec::TextArguments* const addresses[] = {&owner.arguments};
        edgedec::RoundsArguments call{};
        call.target = &target, call.texts = addresses, call.count = 1, call.most_rounds = kRounds, call.most_seconds = 1e9;
        call.pass_seconds = seconds, call.pass_began = began;
        failing = number(4) ? 0 : 12;
        device_events = device_commits = device_passes = 0;
        put(edgedec_loop_rounds(&call));
        owner.show_rounds(owner.arguments.rounds);
        put(device.failure);
        put(device.passes);
        put(device.commits);
        put(device.pending);
    }
    show("accelerators");
}

}  // namespace

int main(int count, char** arguments) {
    for (int at = 1; at < count; ++at) {
        state = static_cast<uint64_t>(std::strtoull(arguments[at], nullptr, 10)) * 2654435761u + 1;
        drafts();
        sampling();
        rounds();
        accelerators();
    }
    std::printf("%s\n", edgedec_loop_error());
    return 0;
}
