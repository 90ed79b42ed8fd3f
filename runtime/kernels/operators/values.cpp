// The operators that compute each value of rows of activations from few others, all float32 [1, n, width]:
//   edgedec::Multiply (a, b), where b may also be [width], a factor of each column, or [1], a factor of all values
//   edgedec::SoftCap (x, x): cap * tanh(x / cap); attribute: cap (float)
//   edgedec::Rotary (x, positions int64 [1, n], cos and sin float32 [positions, pairs]): the first 2 * pairs columns of each of the
//   `heads` equal parts turned, as pairs of a column and the one `pairs` behind it, or, if `interleaved`, of neighbours
// Each product and each sum is rounded, as in NumPy.
#include "operators/rows.hpp"

#include <algorithm>

namespace edgedec {
namespace {

class Multiplication final : public RowOperator {
  public:
    static constexpr const char* kKind = "Multiply";
    Multiplication() : RowOperator(kKind) {}

    Status compute(NodeContext& context) const override {
        Shape shape, others;
        const float *a = nullptr, *b = nullptr;
        float* out = nullptr;
        EDGEDEC_TRY(floats(context, 0, shape, &a));
        EDGEDEC_TRY(floats(context, 1, others, &b));
        const int64_t width = shape.dims.back();
        const bool vector = others.dims.size() == 1, all = vector && others.count == 1, each = vector && others.count == width;
        if (!all && !each && shape.dims != others.dims) return refuse("its inputs must have equal shapes");
        EDGEDEC_TRY(context.output(0, shape.dims, &out));
        return pieces(context, shape.count, each ? width : 1, [&](int64_t first, int64_t count) {
            if (all && !each) {
                for (int64_t i = first; i < first + count; ++i) out[i] = a[i] * b[0];
                return;
            }
            const int64_t step = each ? width : count;
            for (int64_t row = first; row < first + count; row += step) multiply(a + row, each ? b : b + row, step, out + row);
        });
    }

  private:
    static void multiply(const float* __restrict a, const float* __restrict b, int64_t count, float* __restrict out) {
        for (int64_t i = 0; i < count; ++i) out[i] = a[i] * b[i];
    }
};

class SoftCap final : public RowOperator {
  public:
    static constexpr const char* kKind = "SoftCap";
    SoftCap() : RowOperator(kKind) {}

    Status create(const NodeInfo& info) override {
        EDGEDEC_TRY(RowOperator::create(info));
        EDGEDEC_TRY(info.number("cap", &cap_));
        return cap_ > 0 && cap_ < 1e30f ? Status() : refuse("cap must be positive");
    }
    Status compute(NodeContext& context) const override {
        Shape shape;
        const float* x = nullptr;
        float* out = nullptr;
        EDGEDEC_TRY(floats(context, 0, shape, &x));
        EDGEDEC_TRY(context.output(0, shape.dims, &out));
        return pieces(context, shape.count, 1, [&](int64_t first, int64_t count) {
            float inner[kBlock], caps[kBlock];
            std::fill(caps, caps + kBlock, cap_);
            for (int64_t i = first; i < first + count; i += kBlock) {
                const int64_t size = std::min(kBlock, first + count - i);
                for (int64_t j = 0; j < size; ++j) inner[j] = x[i + j] / cap_;
                path_->gate(static_cast<int32_t>(Activation::tanh), inner, caps, size, out + i);
            }
        });
    }

  private:
    static constexpr int64_t kBlock = 256;

    float cap_ = 1.0f;
};

class Rotation final : public RowOperator {
  public:
    static constexpr const char* kKind = "Rotary";
    Rotation() : RowOperator(kKind) {}

    Status create(const NodeInfo& info) override {
        EDGEDEC_TRY(RowOperator::create(info));
        int64_t interleaved = 0;
        EDGEDEC_TRY(info.integer("heads", &heads_));
        EDGEDEC_TRY(info.integer("interleaved", &interleaved));
        if (heads_ < 1 || heads_ > kMostWidth) return refuse("heads must be 1 to " + std::to_string(kMostWidth));
        interleaved_ = interleaved != 0;
        return {};
    }
    Status compute(NodeContext& context) const override {
        Shape shape, places, table, other;
        const float *x = nullptr, *cos = nullptr, *sin = nullptr;
        void* positions = nullptr;
        float* out = nullptr;
        EDGEDEC_TRY(floats(context, 0, shape, &x));
        EDGEDEC_TRY(context.input(1, places, &positions));
        EDGEDEC_TRY(floats(context, 2, table, &cos));
        EDGEDEC_TRY(floats(context, 3, other, &sin));
        if (shape.dims.size() != 3 || shape.dims[0] != 1 || places.type != ElementType::int64 ||
            places.count != shape.dims[1])
            return refuse("its rows must be [1, n, width] with n positions, int64");
        const int64_t width = shape.dims[2], size = width / heads_;
        if (width % heads_ || table.dims.size() != 2 || table.dims != other.dims || 2 * table.dims[1] > size)
            return refuse("its tables must be [positions, pairs], with pairs within a head");
        const int64_t pairs = table.dims[1];
        const auto* const at = static_cast<const int64_t*>(positions);
        for (int64_t row = 0; row < places.count; ++row)
            if (at[row] < 0 || at[row] >= table.dims[0])
                return refuse("there is no position " + std::to_string(at[row]) + " in its tables");
        EDGEDEC_TRY(context.output(0, shape.dims, &out));
        return pieces(context, shape.count, width, [&](int64_t first, int64_t count) {
            for (int64_t begin = first; begin < first + count; begin += width) {
                const int64_t place = at[begin / width] * pairs;
                for (int64_t head = begin; head < begin + width; head += size)
                    turn(x + head, cos + place, sin + place, pairs, size, out + head);
            }
        });
    }

  private:
    void turn(const float* __restrict x, const float* __restrict cos, const float* __restrict sin, int64_t pairs, int64_t size,
              float* __restrict out) const {
        if (interleaved_) {
            for (int64_t i = 0; i < pairs; ++i) {
                out[2 * i] = x[2 * i] * cos[i] - x[2 * i + 1] * sin[i];
                out[2 * i + 1] = x[2 * i + 1] * cos[i] + x[2 * i] * sin[i];
            }
        } else {
            for (int64_t i = 0; i < pairs; ++i) {
                out[i] = x[i] * cos[i] - x[i + pairs] * sin[i];
                out[i + pairs] = x[i + pairs] * cos[i] + x[i] * sin[i];
            }
        }
        for (int64_t i = 2 * pairs; i < size; ++i) out[i] = x[i];
    }

    int64_t heads_ = 1;
    bool interleaved_ = false;
};

}  // namespace

OperatorKind multiplication() { return kind_of<Multiplication>(); }
OperatorKind soft_cap() { return kind_of<SoftCap>(); }
OperatorKind rotation() { return kind_of<Rotation>(); }

}  // namespace edgedec
