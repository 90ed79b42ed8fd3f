// The ONNX Runtime operators on rows of activations, all float32 [1, n, width]:
//   edgedec::RmsNorm (x, gain [part]): norm of each `part` columns of a row; attribute: eps (float)
//   edgedec::GatedActivation (gate, up); attribute: activation (a number of Activation in rows.hpp)
//   edgedec::Hadamard (x, signs [width]): the transform of each block of columns; attributes: block, inverse (0 or 1)
//   edgedec::Add (a, b), where b may also be [width], which is then added to every row
//   edgedec::SelectRows (x, rows int64 [r]): float32 [1, r, width]
#include <cstring>
#include <string>

#include "ort_operator.hpp"
#include "rows.hpp"

namespace edgedec {
namespace {

constexpr auto kFloat = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
constexpr int64_t kPiece = 4096;              // elements that a thread computes at a time
constexpr int64_t kSerialElements = 16 << 10;  // number of elements below which one thread computes them all

class RowOperator : public Operator {
  public:
    RowOperator(const OrtApi& api, const char* kind) : Operator(api, kind) {}

    OrtStatus* create(const NodeInfo& info) override {
        EDGEDEC_TRY(named(info));
        const char* message = nullptr;
        path_ = chosen_path(&message);
        return path_ ? nullptr : refuse(message);
    }

  protected:
    // Calls body(first, count) for pieces of `count` elements, whose sizes are multiples of `unit` except the last.
    template <class Body>
    static OrtStatus* pieces(NodeContext& context, int64_t count, int64_t unit, const Body& body) {
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
        return nullptr;
    }
    OrtStatus* floats(NodeContext& context, size_t index, Shape& shape, const float** data) const {
        void* address = nullptr;
        EDGEDEC_TRY(context.input(index, shape, &address));
        if (shape.type != kFloat || shape.dims.empty()) return refuse("input " + std::to_string(index) + " must be float32");
        *data = static_cast<const float*>(address);
        return nullptr;
    }

    const Path* path_ = nullptr;
};

class Norm final : public RowOperator {
  public:
    static constexpr const char* kKind = "RmsNorm";
    explicit Norm(const OrtApi& api) : RowOperator(api, kKind) {}

    OrtStatus* create(const NodeInfo& info) override {
        EDGEDEC_TRY(RowOperator::create(info));
        EDGEDEC_TRY(info.number("eps", &eps_));
        return eps_ >= 0 && eps_ < 1e30f ? nullptr : refuse("eps must not be negative");
    }
    OrtStatus* compute(NodeContext& context) const override {
        Shape shape, gains;
        const float *x = nullptr, *gain = nullptr;
        float* out = nullptr;
        EDGEDEC_TRY(floats(context, 0, shape, &x));
        EDGEDEC_TRY(floats(context, 1, gains, &gain));
        const int64_t width = gains.count;
        if (width < 1 || width > kMostWidth || shape.dims.back() % width)
            return refuse("the columns of its rows must be a multiple of those of the gain");
        EDGEDEC_TRY(context.output(0, shape.dims, &out));
        return pieces(context, shape.count, width, [&](int64_t first, int64_t count) {
            for (int64_t i = first; i < first + count; i += width) path_->norm(x + i, gain, width, eps_, out + i);
        });
    }

  private:
    float eps_ = 0.0f;
};

class Gate final : public RowOperator {
  public:
    static constexpr const char* kKind = "GatedActivation";
    explicit Gate(const OrtApi& api) : RowOperator(api, kKind) {}

    OrtStatus* create(const NodeInfo& info) override {
        EDGEDEC_TRY(RowOperator::create(info));
        int64_t activation = 0;
        EDGEDEC_TRY(info.integer("activation", &activation));
        if (activation < 0 || activation >= kActivations) return refuse("activation must be 0, 1, 2 or 3");
        activation_ = static_cast<int32_t>(activation);
        return nullptr;
    }
    OrtStatus* compute(NodeContext& context) const override {
        Shape shape, ups;
        const float *gate = nullptr, *up = nullptr;
        float* out = nullptr;
        EDGEDEC_TRY(floats(context, 0, shape, &gate));
        EDGEDEC_TRY(floats(context, 1, ups, &up));
        if (shape.dims != ups.dims) return refuse("its inputs must have equal shapes");
        EDGEDEC_TRY(context.output(0, shape.dims, &out));
        return pieces(context, shape.count, 1, [&](int64_t first, int64_t count) {
            path_->gate(activation_, gate + first, up + first, count, out + first);
        });
    }

  private:
    int32_t activation_ = 0;
};

class Transform final : public RowOperator {
  public:
    static constexpr const char* kKind = "Hadamard";
    explicit Transform(const OrtApi& api) : RowOperator(api, kKind) {}

    OrtStatus* create(const NodeInfo& info) override {
        EDGEDEC_TRY(RowOperator::create(info));
        int64_t inverse = 0;
        EDGEDEC_TRY(info.integer("block", &block_));
        EDGEDEC_TRY(info.integer("inverse", &inverse));
        if (block_ < 2 || block_ > kMostBlock || (block_ & (block_ - 1)))
            return refuse("block must be a power of two from 2 to " + std::to_string(kMostBlock));
        inverse_ = inverse != 0;
        return nullptr;
    }
    OrtStatus* compute(NodeContext& context) const override {
        Shape shape, vector;
        const float *x = nullptr, *signs = nullptr;
        float* out = nullptr;
        EDGEDEC_TRY(floats(context, 0, shape, &x));
        const int64_t width = shape.dims.back();
        if (width % block_) return refuse("the columns of its rows must be a multiple of the block");
        EDGEDEC_TRY(floats(context, 1, vector, &signs));
        if (vector.count != width) return refuse("it must have a sign for each column");
        EDGEDEC_TRY(context.output(0, shape.dims, &out));
        return pieces(context, shape.count, block_, [&](int64_t first, int64_t count) {
            for (int64_t i = first; i < first + count; i += block_)
                path_->transform(x + i, signs + i % width, block_, inverse_, out + i);
        });
    }

  private:
    int64_t block_ = 0;
    bool inverse_ = false;
};

class Sum final : public RowOperator {
  public:
    static constexpr const char* kKind = "Add";
    explicit Sum(const OrtApi& api) : RowOperator(api, kKind) {}

    OrtStatus* compute(NodeContext& context) const override {
        Shape shape, others;
        const float *a = nullptr, *b = nullptr;
        float* out = nullptr;
        EDGEDEC_TRY(floats(context, 0, shape, &a));
        EDGEDEC_TRY(floats(context, 1, others, &b));
        const int64_t width = shape.dims.back();
        const bool each = others.dims.size() == 1 && others.count == width;
        if (!each && shape.dims != others.dims) return refuse("its inputs must have equal shapes");
        EDGEDEC_TRY(context.output(0, shape.dims, &out));
        return pieces(context, shape.count, each ? width : 1, [&](int64_t first, int64_t count) {
            const int64_t step = each ? width : count;
            for (int64_t row = first; row < first + count; row += step) add(a + row, each ? b : b + row, step, out + row);
        });
    }

  private:
    static void add(const float* __restrict a, const float* __restrict b, int64_t count, float* __restrict out) {
        for (int64_t i = 0; i < count; ++i) out[i] = a[i] + b[i];
    }
};

class Selection final : public RowOperator {
  public:
    static constexpr const char* kKind = "SelectRows";
    explicit Selection(const OrtApi& api) : RowOperator(api, kKind) {}

    OrtStatus* compute(NodeContext& context) const override {
        Shape shape, numbers;
        const float* x = nullptr;
        void* rows = nullptr;
        float* out = nullptr;
        EDGEDEC_TRY(floats(context, 0, shape, &x));
        EDGEDEC_TRY(context.input(1, numbers, &rows));
        if (shape.dims.size() != 3 || shape.dims[0] != 1) return refuse("its activations must be [1, n, width]");
        if (numbers.type != ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64 || numbers.dims.size() != 1)
            return refuse("its rows must be int64 [r]");
        const int64_t count = shape.dims[1], width = shape.dims[2];
        const int64_t* const from = static_cast<const int64_t*>(rows);
        for (int64_t i = 0; i < numbers.count; ++i)
            if (from[i] < 0 || from[i] >= count)
                return refuse("there is no row " + std::to_string(from[i]) + " of " + std::to_string(count));
        EDGEDEC_TRY(context.output(0, {1, numbers.count, width}, &out));
        for (int64_t i = 0; i < numbers.count; ++i)
            std::memcpy(out + i * width, x + from[i] * width, static_cast<size_t>(width) * sizeof(float));
        return nullptr;
    }
};

}  // namespace

OperatorKind rms_norm() { return kind_of<Norm>(); }
OperatorKind gated_activation() { return kind_of<Gate>(); }
OperatorKind hadamard() { return kind_of<Transform>(); }
OperatorKind addition() { return kind_of<Sum>(); }
OperatorKind row_selection() { return kind_of<Selection>(); }

}  // namespace edgedec
