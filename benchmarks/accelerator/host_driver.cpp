// Repeats one part of a round of the compiled loop on an accelerator of BitNet-0.73B's sizes, which has always ended already.
// argv: the part, its size, the number of repetitions, and for the part "pass" the folder of a draft model's session. Two runs
// with different numbers of repetitions differ by the instructions of these alone.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "accelerator.hpp"
#include "auto.hpp"
#include "model.hpp"
#include "rounds.hpp"
#include "sessions/session.hpp"

extern "C" {
const char* edgedec_loop_error();
void* edgedec_loop_draft_open(int64_t kind, int64_t vocab, int64_t size, int64_t depth);
void* edgedec_loop_auto_open(edgedec::AutoArguments* arguments, int64_t vocab, int64_t depth);
void* edgedec_loop_model_open(edgedec::ModelArguments* arguments, int64_t vocab, int64_t depth);
int64_t edgedec_loop_draft_expand(void*, const int32_t*, int64_t, const int32_t*, const int32_t*, int64_t, const int32_t*, int64_t,
                                  int32_t*, float*, int32_t*);
int64_t edgedec_loop_draft_observe(void*, const int32_t*, int64_t, int32_t, const float*, const float*, int64_t);
void* edgedec_loop_memory_open(double (*clock)());
int64_t edgedec_loop_grow(void*, const int32_t*, int64_t, int64_t, int64_t, int64_t, const int32_t*, int64_t, const int32_t*,
                          int64_t, const edgedec::SamplingOptions*, int64_t, const float*, int64_t, int64_t, void*, const double*,
                          int32_t*, int32_t*);
int64_t edgedec_loop_rounds(const edgedec::RoundsArguments*);
void* edgedec_session_open_directly(const char* data, int64_t bytes, const edgedec::SessionOptions* options);
const char* edgedec_session_error();
int32_t edgedec_session_bind(void*, const edgedec::SessionTensor*, int64_t, const edgedec::SessionTensor*, int64_t);
int32_t edgedec_session_run(void*, int64_t rows, int64_t results);
}

namespace {

using namespace edgedec;

constexpr int64_t kVocab = 32002, kWidth = 1536, kPairs = 64, kSlots = 8, kFound = 8, kMostFound = 63, kPositions = 1024, kPorts = 4, kPortBytes = 16;
constexpr int64_t kItem = 4 * kSlots, kRowsAt = 4096, kBlock = 4096 * kPorts, kPieces = 4096 / kPortBytes;
constexpr int32_t kToken = 77;  // the token that the accelerator always finds, so that texts repeat it
constexpr int64_t kLength = 600;  // tokens of the text before the first round

[[noreturn]] void fail(const char* why) {
    std::fprintf(stderr, "host_driver: %s\n", why);
    std::exit(2);
}

// Sets what the targets of models with int8 embeddings and one block of keys and values have in common.
template <class Owner>
void describe(Owner& owner, int64_t width, int64_t vocab) {
    TargetArguments& target = owner.target;
    target.width = width;
    target.row_positions = owner.positions.data();
    target.result_rows = owner.results.data();
    target.visible = owner.visible.data();
    target.sequences = owner.sequences.data();
    target.table = owner.groups.data();
    target.logits = owner.logits.data();
    target.vocab = vocab, target.rows = kSlots;
    target.scales = owner.scales.data();
    target.block_rows = kPositions, target.kinds = target.table_stride = target.block_stride = 1;
}

// An accelerator whose registers are memory: clearing the events sets them, so that every operation has ended at once. With a rough head
// its likeliest tokens are scored again, in the order that they have already.
struct Still {
    std::vector<double> embed = std::vector<double>(kSlots * kWidth);
    std::vector<float> logits = std::vector<float>(kSlots * kVocab);
    std::vector<int64_t> positions = std::vector<int64_t>(kSlots), results = std::vector<int64_t>(kSlots);
    std::vector<int64_t> sequences = std::vector<int64_t>(2 * kSlots);
    std::vector<uint64_t> visible = std::vector<uint64_t>(kSlots);
    std::vector<int32_t> found = std::vector<int32_t>(kSlots * kMostFound), mantissa;
    std::vector<uint32_t> registers = std::vector<uint32_t>(64);
    std::vector<int32_t> places;
    std::vector<uint8_t> input, output;
    std::vector<int16_t> angles = std::vector<int16_t>(kPositions * kPairs * 2);
    std::vector<float> scales = std::vector<float>(kVocab, 0.01f);
    uint8_t* table = static_cast<uint8_t*>(std::calloc(kVocab, kWidth));  // its pages are taken where a row is read
    int8_t* codes = nullptr;                                              // codes of the int8 head, likewise
    std::vector<int32_t> groups = std::vector<int32_t>(kSlots);
    int32_t blocks[1] = {0};
    AcceleratorArguments own{};
    TargetArguments target{};

    // `rough`: likeliest tokens of a rough head; 0: the head is another one.
    explicit Still(int64_t rough) {
        const int64_t top = rough ? rough : kFound, norm_at = kRowsAt + kVocab * kItem;
        output.resize(static_cast<size_t>(rough ? norm_at + kWidth * kItem : kRowsAt));
        const int64_t size = (kWidth + kPairs) * kItem;
        input.resize(static_cast<size_t>((size + kBlock - 1) / kBlock * kBlock));
        places.resize(static_cast<size_t>(size / kPortBytes));
        for (int64_t slot = 0; slot < kSlots; ++slot) {
            const int16_t scale[4] = {30000, -20, 0, 0};
            std::memcpy(output.data() + 8 * slot, scale, 8);
            for (int64_t at = 0; at < top; ++at) {
                const int32_t one[2] = {static_cast<int32_t>(90000 - 1000 * at), static_cast<int32_t>(kToken + 13 * at)};
                std::memcpy(output.data() + 8 * (kSlots * (1 + at) + slot), one, 8);
            }
        }
        if (rough) set_head(norm_at, top);
        own.embed = embed.data();
        own.positions = positions.data();
        own.visible = visible.data();
        own.sequences = sequences.data();
        own.groups = groups.data();
        own.logits = logits.data();
        own.found_ids = found.data();
        own.registers = registers.data();
        own.flush_files.action = own.fetch_files.action = -1;  // system calls are not counted but priced
        own.poll_seconds = 1e-9;
        own.patience_seconds = own.clock_hz = own.per_unit = own.scale = 1;
        own.parameters_at = 8, own.commit_slots_at = 12, own.position_at = 16, own.mask_at = 48, own.control_at = 80;
        own.status_at = 84, own.events_at = 88, own.counters_at = 96;
        own.committed_shift = 4, own.logits_shift = 24;
        own.start_bit = 1, own.commit_bit = 2, own.latch_bit = 8, own.busy_bits = 1, own.done_bit = 1, own.committed_bit = 4;
        own.input = input.data();
        own.input_bytes = static_cast<int64_t>(input.size());
        for (size_t at = 0; at < places.size(); ++at) {
            const size_t block = at / (kPorts * kPieces), port = at % kPorts, beat = at / kPorts % kPieces;
            places[at] = static_cast<int32_t>(block * kBlock + port * 4096 + beat * kPortBytes);
        }
        own.places = places.data();
        own.port_bytes = kPortBytes, own.slots = kSlots, own.width = kWidth, own.item_bytes = kItem;
        own.most = 1 << 26;
        own.angles[0] = angles.data();
        own.angles_start[0] = kWidth * kItem;
        own.turns = 1, own.pairs = kPairs;
        own.output = output.data();
        own.top_k = top, own.vocab = own.ids = kVocab, own.rows_at = kRowsAt, own.row_bytes = kItem, own.likeliest = 1;
        describe(*this, kWidth, kVocab);
        target.submit = accelerator_submit;
        target.wait = accelerator_wait;
        target.session = target.cache = &own;
        target.move = accelerator_move;
        target.stored_rows = table;
        target.wide_embed = embed.data();
        target.found_ids = found.data();
        target.found = &own.found;
        target.seconds = &own.seconds;
        if (const char* fault = accelerator_fault(own)) fail(fault);
    }

    void set_head(int64_t norm_at, int64_t top) {
        codes = static_cast<int8_t*>(std::calloc(kVocab, kWidth));
        mantissa.assign(kVocab, 40000);
        for (int64_t column = 0; column < kWidth; ++column) {
            for (int64_t slot = 0; slot < kSlots; ++slot) {
                const auto value = static_cast<int32_t>(100000 + 7919 * column % 900000);
                std::memcpy(output.data() + norm_at + kItem * column + 4 * slot, &value, sizeof(value));
            }
            for (int64_t at = 0; at < top; ++at) codes[(kToken + 13 * at) * kWidth + column] = static_cast<int8_t>(120 - 5 * at);
        }
        own.head = {codes, mantissa.data(), kWidth, 7, 2, norm_at, kWidth * kItem};
    }

    // Ends the program unless the logits of the last pass give the token that they should.
    void check(int64_t rows) const {
        for (int64_t row = 0; row < rows; ++row)
            for (int64_t at = 0; at < own.found; ++at) {
                const int32_t id = found[static_cast<size_t>(row * own.found + at)];
                if (id != kToken && logits[static_cast<size_t>(row * kVocab + id)] >= logits[static_cast<size_t>(row * kVocab + kToken)])
                    fail("another token is the likeliest");
            }
        if (own.found != own.top_k) fail("whole rows were read");
    }
};

void prepare(Still& still, int64_t rows) {
    still.sequences = {rows, kLength - 1};
    for (int64_t row = 0; row < rows; ++row) {
        still.positions[static_cast<size_t>(row)] = kLength - 1 + row;
        still.visible[static_cast<size_t>(row)] = (uint64_t{2} << row) - 1;
        for (int64_t at = 0; at < kWidth; ++at) still.embed[static_cast<size_t>(row * kWidth + at)] = 0.1 * static_cast<double>(at % 7);
    }
}

// Runs rounds whose trees are chains of `ngram`, all of whose guesses are right; with one row without a draft.
void run_rounds_of(Still& still, int64_t rows, int64_t rounds, void* draft) {
    std::vector<int32_t> text(kPositions + 1, kToken);
    const SamplingOptions sampling{0, 1, 0, 1, 0, 0, 0, 64, kVocab, 0, nullptr, nullptr, 0, 0};
    std::vector<int32_t> sizes(2 * kMostRounds), nodes(static_cast<size_t>(3 * kMostRounds * kSlots));
    std::vector<double> seconds(5 * kMostRounds);
    TextArguments one{};
    one.text = text.data();
    one.length = kLength, one.positions = kPositions;
    one.blocks = still.blocks;
    one.held = 1;
    one.draft = rows > 1 ? static_cast<Draft*>(draft) : nullptr;
    one.nodes = rows, one.depth = rows - 1;
    one.sampling = &sampling;
    one.most_tokens = kPositions;
    one.result_nodes = kSlots;
    one.tree_sizes = sizes.data(), one.path_sizes = sizes.data() + kMostRounds;
    one.tokens = nodes.data(), one.parents = one.tokens + kMostRounds * kSlots, one.path = one.parents + kMostRounds * kSlots;
    one.draft_seconds = seconds.data(), one.verify_seconds = one.draft_seconds + kMostRounds;
    one.commit_seconds = one.verify_seconds + kMostRounds;
    TextArguments* const texts[] = {&one};
    RoundsArguments call{};
    call.target = &still.target;
    call.texts = texts;
    call.count = 1, call.most_rounds = rounds, call.most_seconds = 1e9;
    call.pass_seconds = one.commit_seconds + kMostRounds, call.pass_began = call.pass_seconds + kMostRounds;
    if (edgedec_loop_rounds(&call) || one.rounds != rounds) fail(edgedec_loop_error());
    if (one.length != kLength + rounds * rows) fail("the guesses are not all right");
}

// Runs rounds of so many texts, one row of each, without a draft.
void run_texts(Still& still, int64_t count, int64_t rounds) {
    const SamplingOptions sampling{0, 1, 0, 1, 0, 0, 0, 64, kVocab, 0, nullptr, nullptr, 0, 0};
    std::vector<std::vector<int32_t>> ids(static_cast<size_t>(count), std::vector<int32_t>(kPositions + 1, kToken));
    std::vector<int32_t> sizes(2 * kMostRounds), nodes(3 * kMostRounds), groups(ids.size());
    std::vector<double> seconds(5 * kMostRounds);
    std::vector<TextArguments> texts(ids.size());
    std::vector<TextArguments*> list;
    for (size_t at = 0; at < texts.size(); ++at) {
        TextArguments& one = texts[at];
        groups[at] = static_cast<int32_t>(64 * at);
        one.text = ids[at].data();
        one.length = kLength, one.positions = kPositions;
        one.blocks = &groups[at];
        one.held = one.nodes = one.result_nodes = 1;
        one.sampling = &sampling;
        one.most_tokens = kPositions;
        one.tree_sizes = sizes.data(), one.path_sizes = sizes.data() + kMostRounds;
        one.tokens = nodes.data(), one.parents = one.tokens + kMostRounds, one.path = one.parents + kMostRounds;
        one.draft_seconds = seconds.data(), one.verify_seconds = one.draft_seconds + kMostRounds;
        one.commit_seconds = one.verify_seconds + kMostRounds;
        list.push_back(&one);
    }
    RoundsArguments call{};
    call.target = &still.target;
    call.texts = list.data();
    call.count = count, call.most_rounds = rounds, call.most_seconds = 1e9;
    call.pass_seconds = seconds.data() + 3 * kMostRounds, call.pass_began = call.pass_seconds + kMostRounds;
    if (edgedec_loop_rounds(&call)) fail(edgedec_loop_error());
    for (const TextArguments& one : texts)
        if (one.rounds != rounds || one.length != kLength + rounds) fail("a text lacks rounds");
}

// The embedded draft model's sizes, with passes that end at once and logits that do not change.
struct SmallModel {
    static constexpr int64_t kIds = 2048, kColumns = 96;

    std::vector<float> embed = std::vector<float>(kSlots * kColumns), logits = std::vector<float>(kSlots * kIds);
    std::vector<float> scales = std::vector<float>(kIds, 0.01f);
    std::vector<uint8_t> table = std::vector<uint8_t>(kIds * kColumns, 3);
    std::vector<int64_t> positions = std::vector<int64_t>(kSlots), results = std::vector<int64_t>(kSlots);
    std::vector<int64_t> sequences = std::vector<int64_t>(2 * kSlots);
    std::vector<uint64_t> visible = std::vector<uint64_t>(kSlots);
    std::vector<int32_t> tokens = std::vector<int32_t>(kPositions), groups = std::vector<int32_t>(1);
    int32_t blocks[1] = {0};
    TargetArguments target{};
    ModelArguments arguments{};

    SmallModel() {
        for (size_t at = 0; at < logits.size(); ++at) logits[at] = static_cast<float>(at * 7919 % 2000) / 100.0f;
        target.embed = embed.data();
        describe(*this, kColumns, kIds);
        target.submit = [](void*, int64_t, int64_t) { return int32_t{0}; };
        target.stored_rows = table.data();
        target.move = [](const int64_t*, int64_t, void*, const int32_t*, int64_t, int64_t, int64_t, const int32_t*, int64_t) {
            return int32_t{0};
        };
        for (int64_t at = 0; at < kPositions; ++at) tokens[static_cast<size_t>(at)] = static_cast<int32_t>(100 + 31 * (at % 20));
        arguments = {&target, blocks, 1, tokens.data(), kLength - 1, kPositions, kIds, kSlots, 0, 0};
    }
};

// A draft over a text that repeats a phrase of 20 tokens, so that all kinds of drafts have guesses.
struct Drafting {
    std::vector<int32_t> text = std::vector<int32_t>(kLength + 64), tokens = std::vector<int32_t>(kSlots), parents = tokens;
    std::vector<int32_t> ids = std::vector<int32_t>(16 * kSlots), sizes = std::vector<int32_t>(kSlots);
    std::vector<float> probs = std::vector<float>(16 * kSlots);
    void* draft = nullptr;
    std::vector<AutoCandidate> candidates = std::vector<AutoCandidate>(4);
    AutoArguments choice{};
    SmallModel small;

    explicit Drafting(const std::string& kind) {
        const char* const kinds[] = {"ngram", "copy", "stand", "trigram"};
        const auto open = [](int64_t at) {
            return edgedec_loop_draft_open(at, kVocab, at < 2 ? kPositions : 4096, kSlots - 1);
        };
        for (int64_t at = 0; at < 4; ++at)
            if (kind == kinds[at]) draft = open(at);
        if (kind == "auto") {
            for (size_t at = 0; at < candidates.size(); ++at) {
                candidates[at].draft = static_cast<Draft*>(open(static_cast<int64_t>(at)));
                candidates[at].right = 0.5;
            }
            choice = {candidates.data(), static_cast<int64_t>(candidates.size()), -1, 0, -1, nullptr};
            draft = edgedec_loop_auto_open(&choice, kVocab, kSlots - 1);
        }
        if (kind == "model") draft = edgedec_loop_model_open(&small.arguments, SmallModel::kIds, kSlots - 1);
        if (!draft) fail("there is no such draft");
        for (size_t at = 0; at < text.size(); ++at) text[at] = static_cast<int32_t>(100 + 31 * (at % 20));
        for (size_t node = 0; node < tokens.size(); ++node) {
            tokens[node] = text[kLength - 1 + node];
            parents[node] = static_cast<int32_t>(node) - 1;
        }
        expand(1, kLength);
        observe(1, kLength);
    }

    void expand(int64_t nodes, int64_t length) {
        small.arguments.loose = 0;  // so that the draft model's last pass does not answer
        const std::vector<int32_t> asked = {0, 1, 2, 3, 4, 5, 6, 7};
        if (edgedec_loop_draft_expand(draft, text.data(), length, tokens.data(), parents.data(), kSlots, asked.data(), nodes,
                                      ids.data(), probs.data(), sizes.data()))
            fail(edgedec_loop_error());
    }

    void observe(int64_t count, int64_t length) {
        const int32_t* accepted = text.data() + length - 1;
        std::vector<float> top_ids(static_cast<size_t>(kFound * count)), top_probs(top_ids.size());
        for (size_t at = 0; at < top_ids.size(); ++at) {
            top_ids[at] = static_cast<float>(accepted[at / kFound + 1] + static_cast<int32_t>(at % kFound));
            top_probs[at] = 0.5f / static_cast<float>(1 + at % kFound);
        }
        if (edgedec_loop_draft_observe(draft, accepted, count, accepted[count], top_ids.data(), top_probs.data(), kFound))
            fail(edgedec_loop_error());
    }
};

// Grows trees by the policy `hardware`, or chains, of `nodes` nodes.
void grow(Drafting& drafting, int64_t policy, int64_t nodes, int64_t repetitions) {
    const std::vector<float> accept(static_cast<size_t>(kSlots * kSlots), 0.8f);
    std::vector<double> costs(kSlots + 1, 0.012);
    // A call of the draft takes a microsecond by this clock, so that the policy decides the same every time.
    void* memory = edgedec_loop_memory_open([] {
        static double now = 0;
        return now += 1e-6;
    });
    for (int64_t at = 0; at < repetitions; ++at)
        if (edgedec_loop_grow(drafting.draft, drafting.text.data(), kLength, policy, nodes, nodes - 1, nullptr, 0, nullptr, 0, nullptr, 0,
                              accept.data(), kSlots, kSlots, memory, costs.data(), drafting.tokens.data(), drafting.parents.data()) < 1)
            fail(edgedec_loop_error());
}

// A session that Python has written to a folder: its program, and the tensors of each kind with their contents.
void run_session(const std::string& folder, int64_t rows, int64_t repetitions) {
    std::ifstream list(folder + "/tensors"), data(folder + "/data", std::ios::binary), record(folder + "/record", std::ios::binary);
    const std::string program((std::istreambuf_iterator<char>(record)), std::istreambuf_iterator<char>());
    std::vector<std::string> names;
    std::vector<std::vector<char>> contents;
    std::vector<SessionTensor> tensors[3];  // initializers, inputs, outputs
    names.reserve(256), contents.reserve(256);
    int64_t kind = 0;
    std::string name;
    SessionTensor tensor{};
    while (list >> kind >> name >> tensor.bytes >> tensor.type >> tensor.rank >> tensor.dims[0] >> tensor.dims[1] >> tensor.dims[2] >>
           tensor.dims[3]) {
        if (names.size() == names.capacity()) fail("the session has too many tensors");
        names.push_back(name);
        contents.emplace_back(static_cast<size_t>(tensor.bytes + 64));  // tensors begin at multiples of 64 bytes
        char* first = contents.back().data();
        tensor.data = first + (64 - reinterpret_cast<uintptr_t>(first) % 64) % 64;
        data.read(static_cast<char*>(tensor.data), tensor.bytes);
        tensor.name = names.back().c_str();
        tensors[kind].push_back(tensor);
    }
    const SessionOptions options{folder.c_str(), nullptr, 1, tensors[0].data(), static_cast<int64_t>(tensors[0].size()), 1};
    void* session = edgedec_session_open_directly(program.data(), static_cast<int64_t>(program.size()), &options);
    if (!session || edgedec_session_bind(session, tensors[1].data(), static_cast<int64_t>(tensors[1].size()), tensors[2].data(),
                                         static_cast<int64_t>(tensors[2].size())))
        fail(edgedec_session_error());
    for (int64_t at = 0; at < repetitions; ++at)
        if (edgedec_session_run(session, rows, rows)) fail(edgedec_session_error());
    const auto* logits = static_cast<const float*>(tensors[2][0].data);
    for (int64_t at = 0; at < 4; ++at) std::printf("%a\n", static_cast<double>(logits[at]));
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 4) fail("three arguments are needed");
    const std::string part = argv[1];
    const int64_t size = std::atoll(argv[2]), repetitions = std::atoll(argv[3]);
    if (part == "pass") {
        run_session(argv[4], size, repetitions);
        return 0;
    }
    const std::string result = "rough result of ";
    const int64_t rough = part.rfind(result, 0) == 0 ? std::atoll(part.c_str() + result.size()) : 0;
    const auto space = part.find(' ');
    if (space != std::string::npos && !rough) {
        Drafting drafting(part.substr(0, space));
        const std::string what = part.substr(space + 1);
        for (int64_t at = 0; at < repetitions; ++at) {
            if (what == "expand") drafting.expand(size, kLength);
            if (what == "observe") drafting.observe(size, kLength);
        }
        if (what == "chain") grow(drafting, static_cast<int64_t>(Policy::chain), size, repetitions);
        if (what == "hardware") grow(drafting, static_cast<int64_t>(Policy::hardware), size, repetitions);
        return 0;
    }
    Still still(rough);
    if (part == "round") {
        Drafting drafting("ngram");
        run_rounds_of(still, size, repetitions, drafting.draft);
        return 0;
    }
    if (part == "texts") {
        still.own.begins_at = 144, still.own.group_at = 148, still.own.later_at = 180;
        run_texts(still, size, repetitions);
        return 0;
    }
    prepare(still, part == "commit" ? kSlots : size);
    const int32_t kept[] = {0, 2, 3, 4, 5, 6, 7};
    if (accelerator_submit(&still.own, still.sequences[0], 0)) fail("submit");
    for (int64_t at = 0; at < repetitions; ++at) {
        int32_t failed = 1;
        if (part == "submit") failed = accelerator_submit(&still.own, size, size);
        still.own.pending = still.own.done_bit;
        if (part == "result" || rough) failed = accelerator_wait(&still.own);
        if (part == "commit") failed = accelerator_move(nullptr, 0, &still.own, nullptr, 1, 1, kLength, kept, size + 1);
        if (failed) fail(part.c_str());
    }
    if (part == "result" || rough) still.check(size);
    return 0;
}
