// The operator edgedec::TreeAttention, which rotates and stores the keys and values of a pass, and attends.
//
// Inputs: queries, keys and values float32 [1, n, heads * head_dim] (before rotation), positions int64 [1, n], visible int64
// [n, words] (bit j of a row: it sees row j of its own sequence), sequences int64 [s, 2] (rows of each sequence of the pass, in
// order, and its committed rows; what follows the last row of the pass is ignored), blocks int32 [kinds, b] (for each kind of
// states the tables of the sequences one after another: the block of the cache for each 16 rows), cache uint8 [bytes], which the operator updates: one
// buffer for all states of a model, in which this state begins at `offset` (layout: attention.hpp); with rotary, cos and sin
// float32 [positions, head_dim / 2], initializers. Attributes: heads, kv_heads, head_dim, bits, capacity (positions), slots
// (rows of the cache, all sequences together), table (row of blocks), offset, window (0: none), sinks, rotary (0: none, 1: half, 2: interleaved), and
// the floats scale and cap (soft cap of scores, 0: none). `select` is a list: keys (0: queries attend to all keys that they see),
// share, sinks, recent, bits of a label's codes, the first byte in the cache of KeyCounts (attention.hpp), kept, the rank of stored
// keys, and the number of the store of the values (value_store.hpp; 0: none) and their part of it. If keys is not 0, the lists channels (integers) and steps (floats) are [kv_heads * channels of a label], and with kept, importance (floats) is
// [kv_heads * (1 + head_dim)], and with a rank, basis (floats) is [kv_heads * rank * head_dim].
// Output: float32 [1, n, heads * head_dim].
#include <memory>
#include <string>
#include <vector>

#include "attention/attention.hpp"
#include "attention/attention_select.hpp"
#include "operators/operator.hpp"
#include "attention/value_store.hpp"

namespace edgedec {
namespace {

// Number of products below which waking other threads costs more than it saves.
constexpr int64_t kSerialProducts = 64 << 10;

class Kernel : public Operator {
  public:
    static constexpr const char* kKind = "TreeAttention";
    Kernel() : Operator(kKind) {}

    Status create(const NodeInfo& info) override {
        EDGEDEC_TRY(named(info));
        const char* message = nullptr;
        path_ = chosen_path(&message);
        if (!path_) return refuse(message);
        int64_t bits = 0, rotary = 0;
        const struct {
            const char* name;
            int64_t* value;
        } numbers[] = {{"heads", &heads_},         {"kv_heads", &layout_.kv_heads}, {"head_dim", &layout_.head_dim},
                       {"bits", &bits},            {"slots", &layout_.positions},    {"offset", &offset_},
                       {"table", &table_},           {"capacity", &context_},          {"window", &window_},
                       {"sinks", &sinks_},         {"rotary", &rotary}};
        for (const auto& number : numbers)
            EDGEDEC_TRY(info.integer(number.name, number.value));
        EDGEDEC_TRY(info.number("scale", &scale_));
        EDGEDEC_TRY(info.number("cap", &cap_));
        layout_.bits = bits >= 0 && bits <= 32 ? static_cast<int32_t>(bits) : 0;
        EDGEDEC_TRY(read_selection(info));
        if (layout_.problem()) return refuse(layout_.problem());
        if (context_ < 1 || context_ > kMostPositions) return refuse("capacity must be 1 to 2^24");
        if (heads_ < 1 || heads_ % layout_.kv_heads) return refuse("heads must be a multiple of key/value heads");
        if (offset_ < 0 || offset_ % 64) return refuse("offset must be a multiple of 64");
        if (table_ < 0) return refuse("table must not be negative");
        if (window_ < 0 || sinks_ < 0) return refuse("window and sinks must not be negative");
        if (rotary < 0 || rotary > 2) return refuse("rotary must be 0, 1 or 2");
        rotary_.pairs = static_cast<int32_t>(rotary);
        size_t given = 0, results = 0;
        EDGEDEC_TRY(info.counts(&given, &results));
        if (given != (rotary ? 10u : 8u)) return refuse("needs 8 inputs, and with rotary 10");
        const float** tables[] = {&rotary_.cos, &rotary_.sin};
        for (size_t i = 0; rotary && i < 2; ++i) {
            const void* data = nullptr;
            EDGEDEC_TRY(constant(info, 8 + i, given, ElementType::float32,
                                 context_ * layout_.head_dim / 2, &data));
            *tables[i] = static_cast<const float*>(data);
        }
        return {};
    }

    Status compute(NodeContext& context) const override {
        const int64_t width = heads_ * layout_.head_dim, kv_width = layout_.kv_heads * layout_.head_dim;
        const auto kFloat = ElementType::float32;
        const auto kInt64 = ElementType::int64;
        Shape shape;
        void *q, *k, *v, *positions, *visible, *sequences, *blocks, *cache;
        EDGEDEC_TRY(context.input(0, shape, &q));
        if (shape.type != kFloat || shape.dims.size() != 3 || shape.dims[0] != 1 || shape.dims[2] != width)
            return refuse("queries must be float32 [1, n, " + std::to_string(width) + "]");
        const std::vector<int64_t> dims = shape.dims;
        const int64_t tokens = dims[1];
        EDGEDEC_TRY(context.input(1, shape, &k));
        if (shape.type != kFloat || shape.count != tokens * kv_width) return refuse("keys do not fit the queries");
        EDGEDEC_TRY(context.input(2, shape, &v));
        if (shape.type != kFloat || shape.count != tokens * kv_width) return refuse("values do not fit the queries");
        EDGEDEC_TRY(context.input(3, shape, &positions));
        if (shape.type != kInt64 || shape.count != tokens) return refuse("positions must be int64, one per query");
        EDGEDEC_TRY(context.input(4, shape, &visible));
        if (shape.type != kInt64 || shape.dims.size() != 2 || shape.dims[0] != tokens)
            return refuse("visible must be int64 [n, words]");
        const int64_t words = shape.dims[1];
        EDGEDEC_TRY(context.input(5, shape, &sequences));
        if (shape.type != kInt64 || shape.dims.size() != 2 || shape.dims[1] != 2)
            return refuse("sequences must be int64 [s, 2]");
        const int64_t most = shape.dims[0];
        EDGEDEC_TRY(context.input(6, shape, &blocks));
        if (shape.type != ElementType::int32 || shape.dims.size() != 2 || shape.dims[0] <= table_)
            return refuse("blocks must be int32 [kinds, b] with more than " + std::to_string(table_) + " kinds");
        const int64_t entries = shape.dims[1];
        const int32_t* tables = static_cast<int32_t*>(blocks) + table_ * entries;
        EDGEDEC_TRY(context.input(7, shape, &cache));
        if (shape.type != ElementType::uint8 || shape.count < offset_ + layout_.bytes())
            return refuse("the cache must hold " + std::to_string(offset_ + layout_.bytes()) + " uint8, not " +
                          std::to_string(shape.count));
        if (select_.keys && shape.count < counts_ + static_cast<int64_t>(sizeof(KeyCounts)))
            return refuse("the cache has no room for the counts");
        float* out = nullptr;
        EDGEDEC_TRY(context.output(0, dims, &out));
        if (!tokens) return {};

        static thread_local std::vector<Segment> segments;  // kept from pass to pass to avoid allocations
        if (const char* problem = read_segments(layout_, static_cast<int64_t*>(sequences), most, tables, entries, tokens, segments))
            return refuse(problem);
        AttentionRows rows{};
        rows.layout = layout_, rows.cache = static_cast<uint8_t*>(cache) + offset_;
        rows.segments = segments.data(), rows.segment_count = static_cast<int64_t>(segments.size());
        rows.tokens = tokens, rows.context = context_, rows.group = heads_ / layout_.kv_heads;
        rows.queries = static_cast<float*>(q), rows.keys = static_cast<float*>(k), rows.values = static_cast<float*>(v);
        rows.out = out, rows.positions = static_cast<int64_t*>(positions);
        rows.visible = static_cast<uint64_t*>(visible), rows.words = words;
        rows.window = window_, rows.sinks = sinks_, rows.scale = scale_, rows.cap = cap_;
        rows.rotary = rotary_, rows.quantize = path_->quantize, rows.select = select_;
        if (select_.keys) {
            rows.select.counts = reinterpret_cast<KeyCounts*>(static_cast<uint8_t*>(cache) + counts_);
            rows.select.last = &last_;
            rows.basis = {basis_.data(), columns_.data()};
            rows.filed = filed_;
        }
        if (const char* problem = attention_problem(rows)) return refuse(problem);
        const AttentionPass pass(*path_, rows);
        const auto run = [](void* user, size_t task) {
            static_cast<const AttentionPass*>(user)->run(static_cast<int64_t>(task));
        };
        if (width * pass.products() < kSerialProducts) {
            for (int64_t task = 0; task < pass.tasks(); ++task) pass.run(task);
        } else {
            EDGEDEC_TRY(context.parallel(run, static_cast<size_t>(pass.tasks()), const_cast<AttentionPass*>(&pass)));
        }
        const std::string failure = store_ ? store_->take_failure() : std::string();
        return failure.empty() ? Status() : refuse(failure);
    }

  private:
    // Reads and checks the selection of keys.
    Status read_selection(const NodeInfo& info) {
        std::vector<int64_t> numbers;
        EDGEDEC_TRY(info.list("select", numbers));
        if (numbers.size() != 10) return refuse("select must have 10 numbers");
        select_.keys = numbers[0], select_.share = numbers[1], select_.sinks = numbers[2], select_.recent = numbers[3];
        select_.bits = numbers[4] == 8 ? 8 : 4, counts_ = numbers[5], select_.kept = numbers[6];
        if (!select_.keys) return {};
        EDGEDEC_TRY(info.list("channels", channels_));
        EDGEDEC_TRY(info.list("steps", steps_));
        const auto size = static_cast<int64_t>(channels_.size());
        if (layout_.kv_heads < 1 || size % layout_.kv_heads || steps_.size() != channels_.size())
            return refuse("channels and steps must be lists for each key/value head");
        if (counts_ < 0 || counts_ % 8) return refuse("the place of the counts must be a multiple of 8");
        select_.channels = size / layout_.kv_heads, select_.channel = channels_.data(), select_.steps = steps_.data();
        if (select_.kept) EDGEDEC_TRY(info.list("importance", importance_));
        if (static_cast<int64_t>(importance_.size()) != (select_.kept ? layout_.kv_heads * (1 + layout_.head_dim) : 0))
            return refuse("importance must be a list for each key/value head");
        select_.importance = importance_.data();
        last_.resize(static_cast<size_t>(heads_ > 0 ? heads_ : 0));
        layout_.label_bytes = select_.label_bytes();
        layout_.rank = numbers[7], layout_.filed = numbers[8] != 0;
        if (layout_.filed) {
            store_ = value_store(numbers[8]);
            if (!store_) return refuse("the store of the values is not open");
            filed_ = {store_.get(), static_cast<size_t>(numbers[9])};
        }
        if (layout_.problem()) return refuse(layout_.problem());
        if (const char* problem = filed_.problem(layout_)) return refuse(problem);
        if (layout_.rank) {
            EDGEDEC_TRY(info.list("basis", basis_));
            if (static_cast<int64_t>(basis_.size()) != layout_.kv_heads * layout_.rank * layout_.head_dim)
                return refuse("the basis must have a number for each key/value head, number of a key and dimension");
            columns_ = columns_of(layout_, basis_.data());
        }
        if (const char* problem = select_.problem(layout_)) return refuse(problem);
        return {};
    }

    const Path* path_ = nullptr;
    KvLayout layout_{};
    Selection select_{};
    std::vector<int64_t> channels_;
    std::vector<float> steps_, importance_, basis_, columns_;
    std::shared_ptr<ValueStore> store_;  // null: the values are in the cache
    FiledValues filed_;
    mutable std::vector<ChosenKeys> last_;  // choices of each query head; a session runs one pass at a time
    int64_t counts_ = 0;
    Rotary rotary_{};
    int64_t heads_ = 0, context_ = 0, table_ = 0, offset_ = 0, window_ = 0, sinks_ = 0;
    float scale_ = 1.0f, cap_ = 0.0f;
};

}  // namespace

OperatorKind tree_attention() { return kind_of<Kernel>(); }

}  // namespace edgedec
