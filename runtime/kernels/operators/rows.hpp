// The base of operators on rows of activations, all float32 [1, n, width], and the operator of those that compute each piece of a
// row from the same piece of their inputs.
#pragma once

#include <string>
#include <vector>

#include "operators/operator.hpp"
#include "rows/rows.hpp"

namespace edgedec {

constexpr int64_t kPiece = 4096;              // elements that a thread computes at a time
constexpr int64_t kSerialElements = 16 << 10;  // number of elements below which one thread computes them all

// Returns the sum of term(i) for each i below `count`. The order is that of a norm (rows.hpp), with a multiplication and an addition
// in the place of each fma, so that it depends neither on the other rows of the pass nor on the processor.
template <class Term>
float sum_of(int64_t count, const Term& term) {
    float parts[kNormParts] = {};
    int64_t i = 0;
    for (; i + kNormParts <= count; i += kNormParts)
        for (int64_t j = 0; j < kNormParts; ++j) parts[j] += term(i + j);
    for (int64_t j = 0; i + j < count; ++j) parts[j] += term(i + j);
    for (int64_t half = kNormParts / 2; half; half /= 2)
        for (int64_t j = 0; j < half; ++j) parts[j] += parts[j + half];
    return parts[0];
}

class RowOperator : public Operator {
  public:
    explicit RowOperator(const char* kind) : Operator(kind) {}

    Status create(const NodeInfo& info) override {
        EDGEDEC_TRY(named(info));
        const char* message = nullptr;
        path_ = chosen_path(&message);
        return path_ ? Status() : refuse(message);
    }

  protected:
    // Calls body(first, count) for pieces of `count` elements, whose sizes are multiples of `unit` except the last. A unit of no
    // elements is one of rows without columns, of which there are no pieces.
    template <class Body>
    static Status pieces(NodeContext& context, int64_t count, int64_t unit, const Body& body) {
        if (!count) return {};
        const int64_t size = unit >= kPiece ? unit : kPiece / unit * unit;
        struct Pieces {
            const Body* body;
            int64_t count, size;
        } all{&body, count, size};
        const auto run = [](void* user, size_t index) {
            const Pieces& pieces = *static_cast<const Pieces*>(user);
            const int64_t first = static_cast<int64_t>(index) * pieces.size, left = pieces.count - first;
            (*pieces.body)(first, left < pieces.size ? left : pieces.size);
        };
        const auto total = static_cast<size_t>((count + size - 1) / size);
        if (count >= kSerialElements) return context.parallel(run, total, &all);
        for (size_t index = 0; index < total; ++index) run(&all, index);
        return {};
    }
    Status floats(NodeContext& context, size_t index, Shape& shape, const float** data) const {
        void* address = nullptr;
        EDGEDEC_TRY(context.input(index, shape, &address));
        if (shape.type != ElementType::float32 || shape.dims.empty())
            return refuse("input " + std::to_string(index) + " must be float32");
        *data = static_cast<const float*>(address);
        return {};
    }

    const Path* path_ = nullptr;
};

// The answer of an operation that has seen the shapes of its inputs.
struct Fit {
    const char* problem = nullptr;  // null: they fit
    int64_t unit = 1;               // elements of input 0 that cannot be computed apart
    int64_t columns = 0;            // columns of the output; 0: those of input 0
    int32_t form = 0;               // number of the operation's own
};

// The elements [first, first + count) of input 0, from which an operation computes those of the output.
struct RowPiece {
    const Path& path;
    const Fit& fit;
    const float* const* in;
    float* out;
    int64_t width;  // columns of input 0
    int64_t first, count;
};

// Operation has kKind, kInputs, and
//     Status read(const NodeInfo&, std::string& problem)   reads its attributes
//     Fit fit(const Shape* inputs) const
//     void run(const RowPiece&) const
template <class Operation>
class Rowwise final : public RowOperator {
  public:
    static constexpr const char* kKind = Operation::kKind;
    Rowwise() : RowOperator(kKind) {}

    Status create(const NodeInfo& info) override {
        EDGEDEC_TRY(RowOperator::create(info));
        std::string problem;
        EDGEDEC_TRY(operation_.read(info, problem));
        return problem.empty() ? Status() : refuse(problem);
    }
    Status compute(NodeContext& context) const override {
        Shape shapes[Operation::kInputs];
        const float* in[Operation::kInputs];
        for (size_t i = 0; i < Operation::kInputs; ++i) EDGEDEC_TRY(floats(context, i, shapes[i], &in[i]));
        const Fit fit = operation_.fit(shapes);
        if (fit.problem) return refuse(fit.problem);
        const int64_t width = shapes[0].dims.back();
        if (fit.columns) shapes[0].dims.back() = fit.columns;
        float* out = nullptr;
        EDGEDEC_TRY(context.output(0, shapes[0].dims, &out));
        return pieces(context, shapes[0].count, fit.unit, [&](int64_t first, int64_t count) {
            operation_.run({*path_, fit, in, out, width, first, count});
        });
    }

  private:
    Operation operation_;
};

}  // namespace edgedec
