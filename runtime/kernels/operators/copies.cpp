// The operators that copy parts of rows of activations, float32 [1, n, width]:
//   edgedec::SelectRows (x, rows int64 [r]): float32 [1, r, width]
//   edgedec::Columns (one or more values of n rows): columns of them side by side; attribute: pieces, three numbers for each
//   piece: its input, its first column there, and its number of columns; a piece of the input -1 is columns of zeros
#include <cstring>

#include "operators/rows.hpp"

namespace edgedec {
namespace {

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

OperatorKind row_selection() { return kind_of<Selection>(); }
OperatorKind columns() { return kind_of<Columns>(); }

}  // namespace edgedec
