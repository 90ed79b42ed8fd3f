// The operators on rows of activations, all float32 [1, n, width]:
//   edgedec::RmsNorm (x, gain [part]): norm of each `part` columns of a row; attribute: eps (float)
//   edgedec::GatedActivation (gate, up); attribute: activation (a number of Activation in rows.hpp)
//   edgedec::Hadamard (x, signs [width]): the transform of each block of columns; attributes: block, inverse (0 or 1)
//   edgedec::Add (a, b), where b may also be [width], which is then added to every row
//   edgedec::SelectRows (x, rows int64 [r]): float32 [1, r, width]
//   edgedec::FloatMatMul (x, weight float32 [out, width]): float32 [1, n, out], for matrices of few rows
//   edgedec::Columns (one or more values of n rows): columns of them side by side; attribute: pieces, three numbers for each
//   piece: its input, its first column there, and its number of columns; a piece of the input -1 is columns of zeros
#include "operators/rows.hpp"

#include <cstring>

namespace edgedec {
namespace {

class Norm final : public RowOperator {
  public:
    static constexpr const char* kKind = "RmsNorm";
    Norm() : RowOperator(kKind) {}

    Status create(const NodeInfo& info) override {
        EDGEDEC_TRY(RowOperator::create(info));
        EDGEDEC_TRY(info.number("eps", &eps_));
        return eps_ >= 0 && eps_ < 1e30f ? Status() : refuse("eps must not be negative");
    }
    Status compute(NodeContext& context) const override {
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
    Gate() : RowOperator(kKind) {}

    Status create(const NodeInfo& info) override {
        EDGEDEC_TRY(RowOperator::create(info));
        int64_t activation = 0;
        EDGEDEC_TRY(info.integer("activation", &activation));
        if (activation < 0 || activation >= kActivations) return refuse("activation must be 0 to 4");
        activation_ = static_cast<int32_t>(activation);
        return {};
    }
    Status compute(NodeContext& context) const override {
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
    Transform() : RowOperator(kKind) {}

    Status create(const NodeInfo& info) override {
        EDGEDEC_TRY(RowOperator::create(info));
        int64_t inverse = 0;
        EDGEDEC_TRY(info.integer("block", &block_));
        EDGEDEC_TRY(info.integer("inverse", &inverse));
        if (block_ < 2 || block_ > kMostBlock || (block_ & (block_ - 1)))
            return refuse("block must be a power of two from 2 to " + std::to_string(kMostBlock));
        inverse_ = inverse != 0;
        return {};
    }
    Status compute(NodeContext& context) const override {
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
    Sum() : RowOperator(kKind) {}

    Status compute(NodeContext& context) const override {
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
    Selection() : RowOperator(kKind) {}

    Status compute(NodeContext& context) const override {
        Shape shape, numbers;
        const float* x = nullptr;
        void* rows = nullptr;
        float* out = nullptr;
        EDGEDEC_TRY(floats(context, 0, shape, &x));
        EDGEDEC_TRY(context.input(1, numbers, &rows));
        if (shape.dims.size() != 3 || shape.dims[0] != 1) return refuse("its activations must be [1, n, width]");
        if (numbers.type != ElementType::int64 || numbers.dims.size() != 1)
            return refuse("its rows must be int64 [r]");
        const int64_t count = shape.dims[1], width = shape.dims[2];
        const int64_t* const from = static_cast<const int64_t*>(rows);
        for (int64_t i = 0; i < numbers.count; ++i)
            if (from[i] < 0 || from[i] >= count)
                return refuse("there is no row " + std::to_string(from[i]) + " of " + std::to_string(count));
        EDGEDEC_TRY(context.output(0, {1, numbers.count, width}, &out));
        for (int64_t i = 0; i < numbers.count; ++i)
            std::memcpy(out + i * width, x + from[i] * width, static_cast<size_t>(width) * sizeof(float));
        return {};
    }
};

class Product final : public RowOperator {
  public:
    static constexpr const char* kKind = "FloatMatMul";
    Product() : RowOperator(kKind) {}

    Status compute(NodeContext& context) const override {
        Shape shape, matrix;
        const float *x = nullptr, *weight = nullptr;
        float* out = nullptr;
        EDGEDEC_TRY(floats(context, 0, shape, &x));
        EDGEDEC_TRY(floats(context, 1, matrix, &weight));
        const int64_t width = shape.dims.back();
        if (width < 1 || matrix.dims.size() != 2 || matrix.dims[1] != width || matrix.dims[0] < 1)
            return refuse("its matrix must have the columns of its rows");
        const int64_t outputs = matrix.dims[0];
        std::vector<int64_t> dims = shape.dims;
        dims.back() = outputs;
        EDGEDEC_TRY(context.output(0, dims, &out));
        return pieces(context, shape.count, width, [&](int64_t first, int64_t count) {
            for (int64_t row = first / width; row < (first + count) / width; ++row)
                for (int64_t o = 0; o < outputs; ++o)
                    out[row * outputs + o] = dot(x + row * width, weight + o * width, width);
        });
    }

  private:
    // The order of the sum is that of a norm (rows.hpp), with a multiplication and an addition in the place of each fma: it
    // depends neither on the other rows of the pass nor on the processor.
    static float dot(const float* __restrict x, const float* __restrict weight, int64_t width) {
        float parts[kNormParts] = {};
        int64_t i = 0;
        for (; i + kNormParts <= width; i += kNormParts)
            for (int64_t j = 0; j < kNormParts; ++j) parts[j] += x[i + j] * weight[i + j];
        for (int64_t j = 0; i + j < width; ++j) parts[j] += x[i + j] * weight[i + j];
        for (int64_t half = kNormParts / 2; half; half /= 2)
            for (int64_t j = 0; j < half; ++j) parts[j] += parts[j + half];
        return parts[0];
    }
};

class Columns final : public RowOperator {
  public:
    static constexpr const char* kKind = "Columns";
    Columns() : RowOperator(kKind) {}

    Status create(const NodeInfo& info) override {
        EDGEDEC_TRY(RowOperator::create(info));
        std::vector<int64_t> numbers;
        EDGEDEC_TRY(info.list("pieces", numbers));
        size_t outputs = 0;
        EDGEDEC_TRY(info.counts(&inputs_, &outputs));
        if (numbers.empty() || numbers.size() % 3) return refuse("pieces must have three numbers each");
        for (size_t i = 0; i < numbers.size(); i += 3) {
            const Piece piece{numbers[i], numbers[i + 1], numbers[i + 2]};
            if (piece.input < kZeros || piece.input >= static_cast<int64_t>(inputs_))
                return refuse("there is no input " + std::to_string(piece.input));
            if (piece.first < 0 || piece.first > kMostWidth || piece.count < 1 || piece.count > kMostWidth)
                return refuse("the columns of a piece are out of range");
            pieces_.push_back(piece);
            width_ += piece.count;
        }
        return {};
    }
    Status compute(NodeContext& context) const override {
        static thread_local std::vector<Source> sources;  // kept from pass to pass to avoid allocations
        sources.resize(inputs_);
        Shape shape;
        int64_t rows = 0;
        for (size_t i = 0; i < inputs_; ++i) {
            EDGEDEC_TRY(floats(context, i, shape, &sources[i].data));
            if (shape.dims.size() != 3 || shape.dims[0] != 1 || (i && shape.dims[1] != rows))
                return refuse("its inputs must be [1, n, width] with equal n");
            rows = shape.dims[1], sources[i].width = shape.dims[2];
        }
        for (const Piece& piece : pieces_)
            if (piece.input != kZeros && piece.first + piece.count > sources[static_cast<size_t>(piece.input)].width)
                return refuse("a piece ends outside of its input");
        float* out = nullptr;
        EDGEDEC_TRY(context.output(0, {1, rows, width_}, &out));
        for (int64_t row = 0; row < rows; ++row)
            for (const Piece& piece : pieces_) {
                const auto bytes = static_cast<size_t>(piece.count) * sizeof(float);
                if (piece.input == kZeros) {
                    std::memset(out, 0, bytes);
                } else {
                    const Source& source = sources[static_cast<size_t>(piece.input)];
                    std::memcpy(out, source.data + row * source.width + piece.first, bytes);
                }
                out += piece.count;
            }
        return {};
    }

  private:
    static constexpr int64_t kZeros = -1;  // input of a piece that is zeros

    struct Piece {
        int64_t input, first, count;
    };
    struct Source {
        const float* data;
        int64_t width;
    };

    std::vector<Piece> pieces_;
    size_t inputs_ = 0;
    int64_t width_ = 0;
};

}  // namespace

OperatorKind rms_norm() { return kind_of<Norm>(); }
OperatorKind gated_activation() { return kind_of<Gate>(); }
OperatorKind hadamard() { return kind_of<Transform>(); }
OperatorKind addition() { return kind_of<Sum>(); }
OperatorKind row_selection() { return kind_of<Selection>(); }
OperatorKind float_matmul() { return kind_of<Product>(); }
OperatorKind columns() { return kind_of<Columns>(); }

}  // namespace edgedec
