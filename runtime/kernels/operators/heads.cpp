// The operators on the equal parts of rows of activations, float32 [1, n, width]:
//   edgedec::Rotary (x, positions int64 [1, n], cos and sin float32 [positions, pairs]): the first 2 * pairs columns of each of the
//   `heads` equal parts turned, as pairs of a column and the one `pairs` behind it, or, if `interleaved`, of neighbours
//   edgedec::HeadDifference (x, q1, k1, q2, k2 [any]): float32 [1, n, width / 2], the first half of each of `pairs` equal parts
//   less the second times exp(sum(q1 * k1)) - exp(sum(q2 * k2)) + start; attributes: pairs, start
// Each product and each sum is rounded, as in NumPy.
#include <cmath>

#include "operators/rows.hpp"

namespace edgedec {
namespace {

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

class HeadDifference final : public RowOperator {
  public:
    static constexpr const char* kKind = "HeadDifference";
    HeadDifference() : RowOperator(kKind) {}

    Status create(const NodeInfo& info) override {
        EDGEDEC_TRY(RowOperator::create(info));
        EDGEDEC_TRY(info.integer("pairs", &pairs_));
        EDGEDEC_TRY(info.number("start", &start_));
        return pairs_ >= 1 && pairs_ <= kMostWidth ? Status() : refuse("pairs is out of range");
    }
    Status compute(NodeContext& context) const override {
        Shape shape, sizes[4];
        const float *x = nullptr, *vectors[4] = {};
        float* out = nullptr;
        EDGEDEC_TRY(floats(context, 0, shape, &x));
        for (size_t i = 0; i < 4; ++i) {
            EDGEDEC_TRY(floats(context, i + 1, sizes[i], &vectors[i]));
            if (sizes[i].count != sizes[0].count) return refuse("its four vectors must be equally long");
        }
        std::vector<int64_t> dims = shape.dims;
        const int64_t columns = dims.back(), width = columns / (2 * pairs_), count = sizes[0].count;
        if (width < 1 || columns % (2 * pairs_)) return refuse("the columns of its rows must be pairs of equal parts");
        dims.back() = columns / 2;
        EDGEDEC_TRY(context.output(0, dims, &out));
        const float first = std::exp(sum_of(count, [&](int64_t i) { return vectors[0][i] * vectors[1][i]; }));
        const float second = std::exp(sum_of(count, [&](int64_t i) { return vectors[2][i] * vectors[3][i]; }));
        const float factor = first - second + start_;
        for (int64_t pair = 0; pair < shape.count / (2 * width); ++pair) {
            const float *const from = x + pair * 2 * width, *const less = from + width;
            for (int64_t i = 0; i < width; ++i) out[pair * width + i] = from[i] - factor * less[i];
        }
        return {};
    }

  private:
    int64_t pairs_ = 0;
    float start_ = 0.0f;
};

}  // namespace

OperatorKind rotation() { return kind_of<Rotation>(); }
OperatorKind head_difference() { return kind_of<HeadDifference>(); }

}  // namespace edgedec
