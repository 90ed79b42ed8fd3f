// The operators with recurrent states (recurrent.hpp, edgedec/graph/ops.py). Their last inputs are
//   visible int64 [n, words] (bit j of a row: it sees row j of its own sequence; the last one before itself is its parent),
//   sequences int64 [s, 2] (rows of each sequence of the pass, in order, and its committed rows; what follows the last row of the
//   pass is ignored), slots int64 [s] (the slot of each sequence), states float32 [tables + slots * slot]: the buffer of the
//   tables and of all slots, in which the operator keeps its rows.
// Attributes: slot (floats of a slot), rows (most rows of a sequence), tables (floats of the tables), and of the state: offset,
// kept, heads, groups, outer, inner, decay, table. The inputs before are, all float32 [1, n, width] or weights:
//   edgedec::CausalConv (x, taps [kernel, channels], bias [channels])
//   edgedec::SelectiveScan (x, b, c, step, decay, skip, step_bias [heads]); attributes: least, most (float)
//   edgedec::ChannelScan (x, b, c, step, skip, step_bias [channels]), where the heads of the state are blocks of channels and
//   the rates stand in the tables; attributes: least, most (float)
//   edgedec::GatedDeltaRule (q, k, v, rate, step, decay [heads], step_bias), where step and step_bias have a column for each head
//   (decay 0), or for each row of each head's state (decay 1)
#include "operators/recurrent.hpp"

#include <cmath>
#include <cstring>

namespace edgedec {
namespace {

constexpr float kOne = 1.0f;

float softplus(float x) { return (x > 0.0f ? x : 0.0f) + std::log1p(std::exp(-std::fabs(x))); }

// The least and the largest step of a scan.
struct Limits {
    float least = 0.0f, most = 0.0f;

    Status read(const NodeInfo& info) {
        EDGEDEC_TRY(info.number("least", &least));
        return info.number("most", &most);
    }
    float apply(float step) const { return step < least ? least : step > most ? most : step; }
};

class Convolution final : public Recurrent {
  public:
    static constexpr const char* kKind = "CausalConv";
    Convolution() : Recurrent(kKind, 1, 2) {}

  private:
    int64_t width(size_t input) const override { return state_.inner * (input == 1 ? state_.outer + 1 : 1); }
    int64_t out_width() const override { return state_.inner; }

    Status run(NodeContext& context, Work& work) const override {
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
    Scan() : Recurrent(kKind, 4, 3) {}

    Status create(const NodeInfo& info) override {
        EDGEDEC_TRY(Recurrent::create(info));
        if (state_.kind() != Decay::head) return refuse("needs a decay of each head");
        return limits_.read(info);
    }

  private:
    int64_t width(size_t input) const override {
        if (!input) return state_.heads * state_.inner;
        return input < 3 ? state_.groups * state_.outer : state_.heads;
    }
    int64_t out_width() const override { return state_.heads * state_.inner; }

    Status run(NodeContext& context, Work& work) const override {
        const float *x = work.inputs[0], *b = work.inputs[1], *c = work.inputs[2], *skip = work.inputs[5];
        const int64_t inner = state_.inner, all = state_.heads * inner, lefts = state_.groups * state_.outer;
        Status status = each(context, work.tokens, all, [&](int64_t row) {
            float* const kept = work.rows[static_cast<size_t>(row)].kept;
            std::memcpy(kept + state_.heads, b + row * lefts, static_cast<size_t>(lefts) * sizeof(float));
            for (int64_t head = 0; head < state_.heads; ++head) {
                const float step = limits_.apply(softplus(work.inputs[3][row * state_.heads + head] + work.inputs[6][head]));
                kept[head] = std::exp(-std::exp(work.inputs[4][head]) * step);
                float* const right = kept + state_.right(head);
                for (int64_t i = 0; i < inner; ++i) right[i] = step * x[row * all + head * inner + i];
            }
        });
        if (status) return status;
        return heads(context, work, [&](int64_t row, int64_t head, const float* before, float* after) {
            advance(work, work.rows[static_cast<size_t>(row)], head, before, after);
            const int64_t at = row * all + head * inner;
            float* const out = work.out + at;
            read_state(after, &kOne, 0, c + row * lefts + state_.group(head) * state_.outer, state_.outer, inner, out);
            for (int64_t i = 0; i < inner; ++i) out[i] += skip[head] * x[at + i];
        });
    }

    Limits limits_;
};

class ChannelScan final : public Recurrent {
  public:
    static constexpr const char* kKind = "ChannelScan";
    ChannelScan() : Recurrent(kKind, 4, 2) {}

    Status create(const NodeInfo& info) override {
        EDGEDEC_TRY(Recurrent::create(info));
        if (state_.kind() != Decay::element) return refuse("needs a decay of each element");
        return limits_.read(info);
    }

  private:
    int64_t width(size_t input) const override {
        return input == 1 || input == 2 ? state_.groups * state_.outer : state_.heads * state_.inner;
    }
    int64_t out_width() const override { return state_.heads * state_.inner; }

    Status run(NodeContext& context, Work& work) const override {
        const float *b = work.inputs[1], *c = work.inputs[2], *skip = work.inputs[4], *shift = work.inputs[5];
        const int64_t inner = state_.inner, all = state_.heads * inner, lefts = state_.groups * state_.outer;
        for (int64_t row = 0; row < work.tokens; ++row)
            std::memcpy(work.rows[static_cast<size_t>(row)].kept + state_.heads * state_.factors(), b + row * lefts,
                        static_cast<size_t>(lefts) * sizeof(float));
        return heads(context, work, [&](int64_t row, int64_t head, const float* before, float* after) {
            const Row& own = work.rows[static_cast<size_t>(row)];
            const int64_t first = head * inner, at = row * all + first;
            const float *const x = work.inputs[0] + at, *const steps = work.inputs[3] + at;
            float *const factors = own.kept + state_.factor(head), *const right = own.kept + state_.right(head);
            for (int64_t i = 0; i < inner; ++i) {
                factors[i] = limits_.apply(softplus(steps[i] + shift[first + i]));
                right[i] = factors[i] * x[i];
            }
            advance(work, own, head, before, after);
            float* const out = work.out + at;
            read_state(after, &kOne, 0, c + row * lefts + state_.group(head) * state_.outer, state_.outer, inner, out);
            for (int64_t i = 0; i < inner; ++i) out[i] += skip[first + i] * x[i];
        });
    }

    Limits limits_;
};

class DeltaRule final : public Recurrent {
  public:
    static constexpr const char* kKind = "GatedDeltaRule";
    DeltaRule() : Recurrent(kKind, 5, 2) {}

    Status create(const NodeInfo& info) override {
        EDGEDEC_TRY(Recurrent::create(info));
        return state_.kind() == Decay::element ? refuse("needs a decay of each head or row") : Status();
    }

  private:
    int64_t width(size_t input) const override {
        if (input < 2) return state_.groups * state_.outer;
        if (input == 2) return state_.heads * state_.inner;
        return state_.heads * (input == 4 || input == 6 ? state_.factors() : 1);  // steps and their biases
    }
    int64_t out_width() const override { return state_.heads * state_.inner; }

    Status run(NodeContext& context, Work& work) const override {
        const int64_t outer = state_.outer, inner = state_.inner, lefts = state_.groups * outer, count = state_.factors();
        work.values.resize(static_cast<size_t>(work.tokens * lefts));
        float* const queries = work.values.data();
        const float root = std::sqrt(static_cast<float>(outer));
        Status status = each(context, work.tokens, 2 * lefts, [&](int64_t row) {
            float* const kept = work.rows[static_cast<size_t>(row)].kept;
            for (int64_t at = 0; at < lefts; at += outer) {
                unit(work.inputs[0] + row * lefts + at, outer, root, queries + row * lefts + at);
                unit(work.inputs[1] + row * lefts + at, outer, 1.0f, kept + state_.heads * state_.factors() + at);
            }
        });
        if (status) return status;
        return heads(context, work, [&](int64_t row, int64_t head, const float* before, float* after) {
            const Row& own = work.rows[static_cast<size_t>(row)];
            float *const factors = own.kept + state_.factor(head), *const right = own.kept + state_.right(head);
            const float* const steps = work.inputs[4] + row * state_.heads * count + head * count;
            const float decay = std::exp(work.inputs[5][head]), *const shift = work.inputs[6] + head * count;
            for (int64_t i = 0; i < count; ++i) factors[i] = std::exp(-decay * softplus(steps[i] + shift[i]));
            const float* const value = work.inputs[2] + (row * state_.heads + head) * inner;
            const float rate = 1.0f / (1.0f + std::exp(-work.inputs[3][row * state_.heads + head]));
            read_state(before, factors, state_.kind() == Decay::row, own.kept + state_.left(head), outer, inner, right);
            for (int64_t i = 0; i < inner; ++i) right[i] = rate * (value[i] - right[i]);
            advance(work, own, head, before, after);
            read_state(after, &kOne, 0, queries + row * lefts + state_.group(head) * outer, outer, inner,
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
OperatorKind channel_scan() { return kind_of<ChannelScan>(); }
OperatorKind gated_delta_rule() { return kind_of<DeltaRule>(); }

}  // namespace edgedec
