// The base of the operators with recurrent states (operators/recurrent.cpp): their inputs, rows and threads.
#pragma once

#include <string>
#include <vector>

#include "operators/operator.hpp"
#include "rows/recurrent.hpp"
#include "rows/rows.hpp"

namespace edgedec {

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

class Recurrent : public Operator {
  public:
    Recurrent(const char* kind, size_t values, size_t weights)
        : Operator(kind), values_(values), weights_(weights) {}

    Status create(const NodeInfo& info) override {
        EDGEDEC_TRY(named(info));
        const char* message = nullptr;
        path_ = chosen_path(&message);
        if (!path_) return refuse(message);
        const struct {
            const char* name;
            int64_t* value;
        } numbers[] = {{"slot", &slot_},         {"rows", &rows_},           {"offset", &state_.offset}, {"kept", &state_.kept},
                       {"heads", &state_.heads}, {"groups", &state_.groups}, {"outer", &state_.outer},   {"inner", &state_.inner},
                       {"decay", &state_.decay}, {"table", &state_.table},   {"tables", &tables_}};
        for (const auto& number : numbers) EDGEDEC_TRY(info.integer(number.name, number.value));
        if (const char* problem = state_.problem(slot_, rows_, tables_)) return refuse(problem);
        size_t given = 0, results = 0;
        EDGEDEC_TRY(info.counts(&given, &results));
        return given == values_ + weights_ + 4 ? Status() : refuse("needs " + std::to_string(values_ + weights_ + 4) + " inputs");
    }

    Status compute(NodeContext& context) const override {
        static thread_local Work work;  // kept from pass to pass to avoid allocations
        EDGEDEC_TRY(read(context, work));
        if (!work.tokens) return {};
        return run(context, work);
    }

  protected:
    struct Work {
        const float* inputs[8];
        float* out;
        const float* tables;
        int64_t tokens;
        std::vector<Row> rows;
        std::vector<Sequence> sequences;
        std::vector<float> values;  // values of the operator
    };

    virtual Status run(NodeContext& context, Work& work) const = 0;
    virtual int64_t width(size_t input) const = 0;   // columns of a value, or floats of a weight
    virtual int64_t out_width() const = 0;

    // Calls body(index) for each index below `count`, on several threads if there is enough to do.
    template <class Body>
    static Status each(NodeContext& context, int64_t count, int64_t floats, const Body& body) {
        const auto call = [](void* user, size_t index) { (*static_cast<const Body*>(user))(static_cast<int64_t>(index)); };
        if (count * floats >= kSerialFloats) return context.parallel(call, static_cast<size_t>(count), const_cast<Body*>(&body));
        for (int64_t index = 0; index < count; ++index) body(index);
        return {};
    }

    // Computes the rows of each head of each sequence. `before` is the state before a row, from which body(row, head, before,
    // after) computes the state after it; the state of a parent that is not the row before is replayed.
    template <class Body>
    Status heads(NodeContext& context, const Work& work, const Body& body) const {
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

    // Computes the state after a row whose kept parts are there.
    void advance(const Work& work, const Row& row, int64_t head, const float* before, float* after) const {
        advance_state(state_, head, work.tables, row.kept, before, after);
    }

    const Path* path_ = nullptr;
    RecurrentState state_{};

  private:
    // Sets `memory` to the state after `row`; -1: nothing is to be done.
    void replay(const Work& work, const float* committed, int64_t row, int64_t head, float* memory) const {
        if (row < 0) return;
        const Row& own = work.rows[static_cast<size_t>(row)];
        replay(work, committed, own.parent, head, memory);
        advance(work, own, head, own.parent < 0 ? committed : memory, memory);
    }

    Status read(NodeContext& context, Work& work) const {
        constexpr auto kFloat = ElementType::float32;
        constexpr auto kInt64 = ElementType::int64;
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
        if (shape.type != kFloat || shape.count < tables_ || (shape.count - tables_) % slot_)
            return refuse("states must be float32, the tables and whole slots");
        const int64_t slot_count = (shape.count - tables_) / slot_;
        work.tables = static_cast<const float*>(data);
        float* const all = static_cast<float*>(data) + tables_;
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
            float* const slot = all + numbers[s] * slot_;
            work.sequences.push_back({first, count, slot + state_.offset});
            for (int64_t r = 0; r < count; ++r) {
                const int64_t parent = last_before(masks + (first + r) * words, r);
                work.rows.push_back({parent < 0 ? -1 : first + parent, slot, slot + state_.kept + r * state_.kept_width()});
            }
            first += count;
        }
        return {};
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
    int64_t slot_ = 0, rows_ = 0, tables_ = 0;
};

}  // namespace edgedec
