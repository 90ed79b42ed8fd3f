// The ONNX Runtime operators with recurrent states (recurrent.hpp, edgedec/ops.py). Their last inputs are
//   visible int64 [n, words] (bit j of a row: it sees row j of its own sequence; the last one before itself is its parent),
//   sequences int64 [s, 2] (rows of each sequence of the pass, in order, and its committed rows; what follows the last row of the
//   pass is ignored), slots int64 [s] (the slot of each sequence), states float32 [slots * slot]: the buffer of all slots, in
//   which the operator keeps its rows.
// Attributes: slot (floats of a slot), rows (most rows of a sequence), offset and kept (of the state in a slot), heads, groups,
// outer, inner. The inputs before are, all float32 [1, n, width] or weights:
//   edgedec::CausalConv (x, taps [kernel, channels], bias [channels])
//   edgedec::SelectiveScan (x, b, c, step, decay, skip, step_bias [heads]); attributes: least, most (float)
//   edgedec::GatedDeltaRule (q, k, v, rate, step, decay, step_bias [heads])
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "ort_operator.hpp"
#include "recurrent.hpp"
#include "rows.hpp"

namespace edgedec {
namespace {

constexpr int64_t kSerialFloats = 32 << 10;  // floats of states below which one thread computes all

// A row of the pass.
struct Row {
    int64_t parent;  // row of the pass, -1: it follows the committed rows
    float* slot;
    float* kept;
};

struct Sequence {
    int64_t first, count;  // rows of the pass
    const float* state;
};

float softplus(float x) { return (x > 0.0f ? x : 0.0f) + std::log1p(std::exp(-std::fabs(x))); }

class Recurrent : public Operator {
  public:
    Recurrent(const OrtApi& api, const char* kind, size_t values, size_t weights)
        : Operator(api, kind), values_(values), weights_(weights) {}

    OrtStatus* create(const NodeInfo& info) override {
        EDGEDEC_TRY(named(info));
        const char* message = nullptr;
        path_ = chosen_path(&message);
        if (!path_) return refuse(message);
        const struct {
            const char* name;
            int64_t* value;
        } numbers[] = {{"slot", &slot_},         {"rows", &rows_},           {"offset", &state_.offset}, {"kept", &state_.kept},
                       {"heads", &state_.heads}, {"groups", &state_.groups}, {"outer", &state_.outer},   {"inner", &state_.inner}};
        for (const auto& number : numbers) EDGEDEC_TRY(info.integer(number.name, number.value));
        if (const char* problem = state_.problem(slot_, rows_)) return refuse(problem);
        size_t given = 0, results = 0;
        EDGEDEC_TRY(info.counts(&given, &results));
        return given == values_ + weights_ + 4 ? nullptr : refuse("needs " + std::to_string(values_ + weights_ + 4) + " inputs");
    }

    OrtStatus* compute(NodeContext& context) const override {
        static thread_local Work work;  // kept from pass to pass to avoid allocations
        EDGEDEC_TRY(read(context, work));
        if (!work.tokens) return nullptr;
        return run(context, work);
    }

  protected:
    struct Work {
        const float* inputs[8];
        float* out;
        int64_t tokens;
        std::vector<Row> rows;
        std::vector<Sequence> sequences;
        std::vector<float> values;  // of the operator
    };

    virtual OrtStatus* run(NodeContext& context, Work& work) const = 0;
    virtual int64_t width(size_t input) const = 0;   // columns of a value, or floats of a weight
    virtual int64_t out_width() const = 0;

    // Calls body(index) for each index below `count`, on several threads if there is enough to do.
    template <class Body>
    static OrtStatus* each(NodeContext& context, int64_t count, int64_t floats, const Body& body) {
        const auto call = [](void* user, size_t index) { (*static_cast<const Body*>(user))(static_cast<int64_t>(index)); };
        if (count * floats >= kSerialFloats) return context.parallel(call, static_cast<size_t>(count), const_cast<Body*>(&body));
        for (int64_t index = 0; index < count; ++index) body(index);
        return nullptr;
    }

    // Computes the rows of each head of each sequence. `before` is the state before a row, from which body(row, head, before,
    // after) computes the state after it; the state of a parent that is not the row before is replayed.
    template <class Body>
    OrtStatus* heads(NodeContext& context, const Work& work, const Body& body) const {
        const RecurrentState& state = state_;
        const int64_t count = static_cast<int64_t>(work.sequences.size()) * state.heads;
        const auto task = [&](int64_t index) {
            static thread_local std::vector<float> memory;
            const auto floats = static_cast<size_t>(state.head_floats());
            if (memory.size() < floats) memory.resize(floats);
            const Sequence& sequence = work.sequences[static_cast<size_t>(index / state.heads)];
            const int64_t head = index % state.heads;
            const float* const committed = sequence.state + head * state.head_floats();
            int64_t current = -1;  // the row whose state is in `memory`
            for (int64_t row = sequence.first; row < sequence.first + sequence.count; ++row) {
                const int64_t parent = work.rows[static_cast<size_t>(row)].parent;
                if (parent != current) replay(work, committed, parent, head, memory.data());
                body(row, head, parent < 0 ? committed : memory.data(), memory.data());
                current = row;
            }
        };
        return each(context, count, work.tokens * state.head_floats(), task);
    }

    void advance(const Row& row, int64_t head, const float* before, float* after) const {
        advance_state(before, row.kept[head], row.kept + state_.left(head), row.kept + state_.right(head), state_.outer,
                      state_.inner, after);
    }

    const Path* path_ = nullptr;
    RecurrentState state_{};

  private:
    // Sets `memory` to the state after `row`; -1: nothing is to be done.
    void replay(const Work& work, const float* committed, int64_t row, int64_t head, float* memory) const {
        if (row < 0) return;
        const Row& own = work.rows[static_cast<size_t>(row)];
        replay(work, committed, own.parent, head, memory);
        advance(own, head, own.parent < 0 ? committed : memory, memory);
    }

    OrtStatus* read(NodeContext& context, Work& work) const {
        constexpr auto kFloat = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
        constexpr auto kInt64 = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;
        Shape shape;
        void* data = nullptr;
        work.tokens = -1;
        for (size_t i = 0; i < values_ + weights_; ++i) {
            EDGEDEC_TRY(context.input(i, shape, &data));
            if (!i) {
                if (shape.dims.size() != 3 || shape.dims[0] != 1) return refuse("its values must be [1, n, width]");
                work.tokens = shape.dims[1];
            }
            if (shape.type != kFloat || shape.count != width(i) * (i < values_ ? work.tokens : 1))
                return refuse("its input " + std::to_string(i) + " must be float32 with " + std::to_string(width(i)) + " columns");
            work.inputs[i] = static_cast<const float*>(data);
        }
        EDGEDEC_TRY(context.output(0, {1, work.tokens, out_width()}, &work.out));
        void *visible, *sequences, *slots;
        size_t at = values_ + weights_;
        EDGEDEC_TRY(context.input(at++, shape, &visible));
        if (shape.type != kInt64 || shape.dims.size() != 2 || shape.dims[0] != work.tokens)
            return refuse("visible must be int64 [n, words]");
        const int64_t words = shape.dims[1];
        EDGEDEC_TRY(context.input(at++, shape, &sequences));
        if (shape.type != kInt64 || shape.dims.size() != 2 || shape.dims[1] != 2)
            return refuse("sequences must be int64 [s, 2]");
        const int64_t most = shape.dims[0];
        EDGEDEC_TRY(context.input(at++, shape, &slots));
        if (shape.type != kInt64 || shape.count != most) return refuse("slots must be int64, one for each sequence");
        EDGEDEC_TRY(context.input(at++, shape, &data));
        if (shape.type != kFloat || shape.count % slot_) return refuse("states must be float32, whole slots");
        const int64_t slot_count = shape.count / slot_;
        work.rows.clear();
        work.sequences.clear();
        const auto* const counts = static_cast<const int64_t*>(sequences);
        const auto* const numbers = static_cast<const int64_t*>(slots);
        const auto* const masks = static_cast<const uint64_t*>(visible);
        for (int64_t s = 0, first = 0; first < work.tokens; ++s) {
            if (s == most) return refuse("the sequences have fewer rows than the pass");
            const int64_t count = counts[2 * s];
            if (count < 1 || count > rows_ || first + count > work.tokens || count > 64 * words)
                return refuse("a sequence of a pass must have 1 to " + std::to_string(rows_) + " rows");
            if (numbers[s] < 0 || numbers[s] >= slot_count) return refuse("there is no slot " + std::to_string(numbers[s]));
            float* const slot = static_cast<float*>(data) + numbers[s] * slot_;
            work.sequences.push_back({first, count, slot + state_.offset});
            for (int64_t r = 0; r < count; ++r) {
                const int64_t parent = last_before(masks + (first + r) * words, r);
                work.rows.push_back({parent < 0 ? -1 : first + parent, slot, slot + state_.kept + r * state_.kept_width()});
            }
            first += count;
        }
        return nullptr;
    }

    // Returns the last bit before `row`, -1 if there is none.
    static int64_t last_before(const uint64_t* mask, int64_t row) {
        for (int64_t word = row / 64; word >= 0; --word) {
            uint64_t bits = mask[word];
            if (word == row / 64) bits &= (uint64_t{1} << row % 64) - 1;
            if (bits) return 64 * word + 63 - __builtin_clzll(bits);
        }
        return -1;
    }

    const size_t values_, weights_;
    int64_t slot_ = 0, rows_ = 0;
};

class Convolution final : public Recurrent {
  public:
    static constexpr const char* kKind = "CausalConv";
    explicit Convolution(const OrtApi& api) : Recurrent(api, kKind, 1, 2) {}

  private:
    int64_t width(size_t input) const override { return state_.inner * (input == 1 ? state_.outer + 1 : 1); }
    int64_t out_width() const override { return state_.inner; }

    OrtStatus* run(NodeContext& context, Work& work) const override {
        const int64_t channels = state_.inner, before = state_.outer;
        const auto bytes = static_cast<size_t>(channels) * sizeof(float);
        work.values.assign(static_cast<size_t>(channels), 1.0f);
        return each(context, work.tokens, channels * (before + 1), [&](int64_t row) {
            float* const out = work.out + row * channels;
            std::memcpy(out, work.inputs[2], bytes);
            for (int64_t k = 0; k <= before; ++k)
                add_products(work.inputs[1] + k * channels, seen(work, row, before - k), channels, out);
            path_->gate(static_cast<int32_t>(Activation::silu), out, work.values.data(), channels, out);
            std::memcpy(work.rows[static_cast<size_t>(row)].kept, work.inputs[0] + row * channels, bytes);
        });
    }

    // Returns the inputs of the row that is `back` rows before `row` on its path.
    const float* seen(const Work& work, int64_t row, int64_t back) const {
        const float* const state = work.rows[static_cast<size_t>(row)].slot + state_.offset;
        for (; back; --back) {
            row = work.rows[static_cast<size_t>(row)].parent;
            if (row < 0) return state + (state_.outer - back) * state_.inner;
        }
        return work.inputs[0] + row * state_.inner;
    }
};

class Scan final : public Recurrent {
  public:
    static constexpr const char* kKind = "SelectiveScan";
    explicit Scan(const OrtApi& api) : Recurrent(api, kKind, 4, 3) {}

    OrtStatus* create(const NodeInfo& info) override {
        EDGEDEC_TRY(Recurrent::create(info));
        EDGEDEC_TRY(info.number("least", &least_));
        return info.number("most", &most_);
    }

  private:
    int64_t width(size_t input) const override {
        if (!input) return state_.heads * state_.inner;
        return input < 3 ? state_.groups * state_.outer : state_.heads;
    }
    int64_t out_width() const override { return state_.heads * state_.inner; }

    OrtStatus* run(NodeContext& context, Work& work) const override {
        const float *x = work.inputs[0], *b = work.inputs[1], *c = work.inputs[2], *skip = work.inputs[5];
        const int64_t inner = state_.inner, all = state_.heads * inner, lefts = state_.groups * state_.outer;
        OrtStatus* status = each(context, work.tokens, all, [&](int64_t row) {
            float* const kept = work.rows[static_cast<size_t>(row)].kept;
            std::memcpy(kept + state_.heads, b + row * lefts, static_cast<size_t>(lefts) * sizeof(float));
            for (int64_t head = 0; head < state_.heads; ++head) {
                float step = softplus(work.inputs[3][row * state_.heads + head] + work.inputs[6][head]);
                step = step < least_ ? least_ : step > most_ ? most_ : step;
                kept[head] = std::exp(-std::exp(work.inputs[4][head]) * step);
                float* const right = kept + state_.right(head);
                for (int64_t i = 0; i < inner; ++i) right[i] = step * x[row * all + head * inner + i];
            }
        });
        if (status) return status;
        return heads(context, work, [&](int64_t row, int64_t head, const float* before, float* after) {
            advance(work.rows[static_cast<size_t>(row)], head, before, after);
            const int64_t at = row * all + head * inner;
            float* const out = work.out + at;
            read_state(after, 1.0f, c + row * lefts + state_.group(head) * state_.outer, state_.outer, inner, out);
            for (int64_t i = 0; i < inner; ++i) out[i] += skip[head] * x[at + i];
        });
    }

    float least_ = 0.0f, most_ = 0.0f;
};

class DeltaRule final : public Recurrent {
  public:
    static constexpr const char* kKind = "GatedDeltaRule";
    explicit DeltaRule(const OrtApi& api) : Recurrent(api, kKind, 5, 2) {}

  private:
    int64_t width(size_t input) const override {
        if (input < 2) return state_.groups * state_.outer;
        return input == 2 ? state_.heads * state_.inner : state_.heads;
    }
    int64_t out_width() const override { return state_.heads * state_.inner; }

    OrtStatus* run(NodeContext& context, Work& work) const override {
        const int64_t outer = state_.outer, inner = state_.inner, lefts = state_.groups * outer;
        work.values.resize(static_cast<size_t>(work.tokens * lefts));
        float* const queries = work.values.data();
        const float root = std::sqrt(static_cast<float>(outer));
        OrtStatus* status = each(context, work.tokens, 2 * lefts, [&](int64_t row) {
            float* const kept = work.rows[static_cast<size_t>(row)].kept;
            for (int64_t at = 0; at < lefts; at += outer) {
                unit(work.inputs[0] + row * lefts + at, outer, root, queries + row * lefts + at);
                unit(work.inputs[1] + row * lefts + at, outer, 1.0f, kept + state_.heads + at);
            }
            for (int64_t head = 0; head < state_.heads; ++head) {
                const float step = softplus(work.inputs[4][row * state_.heads + head] + work.inputs[6][head]);
                kept[head] = std::exp(-std::exp(work.inputs[5][head]) * step);
            }
        });
        if (status) return status;
        return heads(context, work, [&](int64_t row, int64_t head, const float* before, float* after) {
            const Row& own = work.rows[static_cast<size_t>(row)];
            float* const right = own.kept + state_.right(head);
            const float* const value = work.inputs[2] + (row * state_.heads + head) * inner;
            const float rate = 1.0f / (1.0f + std::exp(-work.inputs[3][row * state_.heads + head]));
            read_state(before, own.kept[head], own.kept + state_.left(head), outer, inner, right);
            for (int64_t i = 0; i < inner; ++i) right[i] = rate * (value[i] - right[i]);
            advance(own, head, before, after);
            read_state(after, 1.0f, queries + row * lefts + state_.group(head) * outer, outer, inner,
                       work.out + (row * state_.heads + head) * inner);
        });
    }

    // out = x / sqrt(sum of squares + 1e-6) / divisor
    static void unit(const float* x, int64_t count, float divisor, float* out) {
        float sum = 0.0f;
        for (int64_t i = 0; i < count; ++i) sum += x[i] * x[i];
        const float length = std::sqrt(sum + 1e-6f);
        for (int64_t i = 0; i < count; ++i) out[i] = x[i] / length / divisor;
    }
};

}  // namespace

OperatorKind causal_conv() { return kind_of<Convolution>(); }
OperatorKind selective_scan() { return kind_of<Scan>(); }
OperatorKind gated_delta_rule() { return kind_of<DeltaRule>(); }

}  // namespace edgedec
