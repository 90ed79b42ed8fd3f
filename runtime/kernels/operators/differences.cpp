// The operators that take something away from rows of activations, all float32 [1, n, width]:
//   edgedec::LayerNorm (x, weight [width], bias [width]): rows less their mean, over the root of their variance; attribute: eps
//   edgedec::HeadDifference (x, q1, k1, q2, k2 [any]): float32 [1, n, width / 2], the first half of each of `pairs` equal parts
//   less the second times exp(sum(q1 * k1)) - exp(sum(q2 * k2)) + start; attributes: pairs, start
// The order of all sums is that of a norm (rows.hpp), without fused multiply-adds.
#include "operators/rows.hpp"

#include <cmath>

namespace edgedec {
namespace {

// Returns the sum of term(i) for each i below `count`.
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

class LayerNorm final : public RowOperator {
  public:
    static constexpr const char* kKind = "LayerNorm";
    LayerNorm() : RowOperator(kKind) {}

    Status create(const NodeInfo& info) override {
        EDGEDEC_TRY(RowOperator::create(info));
        EDGEDEC_TRY(info.number("eps", &eps_));
        return eps_ >= 0 && eps_ < 1e30f ? Status() : refuse("eps must not be negative");
    }
    Status compute(NodeContext& context) const override {
        Shape shape, weights, biases;
        const float *x = nullptr, *weight = nullptr, *bias = nullptr;
        float* out = nullptr;
        EDGEDEC_TRY(floats(context, 0, shape, &x));
        EDGEDEC_TRY(floats(context, 1, weights, &weight));
        EDGEDEC_TRY(floats(context, 2, biases, &bias));
        const int64_t width = shape.dims.back();
        if (width < 1 || weights.count != width || biases.count != width)
            return refuse("its weight and bias must have the columns of its rows");
        EDGEDEC_TRY(context.output(0, shape.dims, &out));
        return pieces(context, shape.count, width, [&](int64_t first, int64_t count) {
            for (int64_t i = first; i < first + count; i += width) norm(x + i, weight, bias, width, out + i);
        });
    }

  private:
    void norm(const float* x, const float* weight, const float* bias, int64_t width, float* out) const {
        const auto size = static_cast<float>(width);
        const float mean = sum_of(width, [&](int64_t i) { return x[i]; }) / size;
        const float squares = sum_of(width, [&](int64_t i) { return (x[i] - mean) * (x[i] - mean); });
        const float factor = 1.0f / std::sqrt(squares / size + eps_);
        for (int64_t i = 0; i < width; ++i) out[i] = (x[i] - mean) * factor * weight[i] + bias[i];
    }

    float eps_ = 0.0f;
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

OperatorKind layer_norm() { return kind_of<LayerNorm>(); }
OperatorKind head_difference() { return kind_of<HeadDifference>(); }

}  // namespace edgedec
