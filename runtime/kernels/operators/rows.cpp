// The operators that compute each piece of a row from the same piece of their inputs, float32 [1, n, width]:
//   edgedec::RmsNorm (x, gain [part]): norm of each `part` columns of a row; attribute: eps (float)
//   edgedec::LayerNorm (x, weight [width], bias [width]): rows less their mean, over the root of their variance; attribute: eps
//   edgedec::GatedActivation (gate, up); attribute: activation (a number of Activation in rows.hpp)
//   edgedec::Hadamard (x, signs [width]): the transform of each block of columns; attributes: block, inverse (0 or 1)
//   edgedec::Add (a, b), where b may also be [width], which is then added to every row
//   edgedec::Multiply (a, b), where b may also be [width], a factor of each column, or [1], a factor of all values
//   edgedec::SoftCap (x, x): cap * tanh(x / cap); attribute: cap (float)
//   edgedec::FloatMatMul (x, weight float32 [out, width]): float32 [1, n, out], for matrices of few rows
// Each product and each sum is rounded, as in NumPy, but for those of RmsNorm and GatedActivation (rows/rows.hpp).
#include "operators/rows.hpp"

#include <algorithm>
#include <cmath>

namespace edgedec {
namespace {

// Reads a number that must be less than 1e30 and not negative, or, if `positive`, not 0 either.
Status read_number(const NodeInfo& info, const char* name, bool positive, float& value, std::string& problem) {
    EDGEDEC_TRY(info.number(name, &value));
    if (!((positive ? value > 0 : value >= 0) && value < 1e30f))
        problem = std::string(name) + (positive ? " must be positive" : " must not be negative");
    return {};
}

struct RmsNorm {
    static constexpr const char* kKind = "RmsNorm";
    static constexpr size_t kInputs = 2;

    Status read(const NodeInfo& info, std::string& problem) { return read_number(info, "eps", false, eps, problem); }
    static Fit fit(const Shape* in) {
        const int64_t part = in[1].count;
        if (part < 1 || part > kMostWidth || in[0].dims.back() % part)
            return {"the columns of its rows must be a multiple of those of the gain"};
        return {nullptr, part};
    }
    void run(const RowPiece& at) const {
        const int64_t part = at.fit.unit;
        for (int64_t i = at.first; i < at.first + at.count; i += part)
            at.path.norm(at.in[0] + i, at.in[1], part, eps, at.out + i);
    }

    float eps = 0.0f;
};

struct LayerNorm {
    static constexpr const char* kKind = "LayerNorm";
    static constexpr size_t kInputs = 3;

    Status read(const NodeInfo& info, std::string& problem) { return read_number(info, "eps", false, eps, problem); }
    static Fit fit(const Shape* in) {
        const int64_t width = in[0].dims.back();
        if (width < 1 || in[1].count != width || in[2].count != width)
            return {"its weight and bias must have the columns of its rows"};
        return {nullptr, width};
    }
    void run(const RowPiece& at) const {
        for (int64_t i = at.first; i < at.first + at.count; i += at.width)
            norm(at.in[0] + i, at.in[1], at.in[2], at.width, at.out + i);
    }
    void norm(const float* x, const float* weight, const float* bias, int64_t width, float* out) const {
        const auto size = static_cast<float>(width);
        const float mean = sum_of(width, [&](int64_t i) { return x[i]; }) / size;
        const float squares = sum_of(width, [&](int64_t i) { return (x[i] - mean) * (x[i] - mean); });
        const float factor = 1.0f / std::sqrt(squares / size + eps);
        for (int64_t i = 0; i < width; ++i) out[i] = (x[i] - mean) * factor * weight[i] + bias[i];
    }

    float eps = 0.0f;
};

struct GatedActivation {
    static constexpr const char* kKind = "GatedActivation";
    static constexpr size_t kInputs = 2;

    Status read(const NodeInfo& info, std::string& problem) {
        int64_t number = 0;
        EDGEDEC_TRY(info.integer("activation", &number));
        if (number < 0 || number >= kActivations) problem = "activation must be 0 to 4";
        activation = static_cast<int32_t>(number);
        return {};
    }
    static Fit fit(const Shape* in) {
        return {in[0].dims == in[1].dims ? nullptr : "its inputs must have equal shapes"};
    }
    void run(const RowPiece& at) const {
        at.path.gate(activation, at.in[0] + at.first, at.in[1] + at.first, at.count, at.out + at.first);
    }

    int32_t activation = 0;
};

struct Hadamard {
    static constexpr const char* kKind = "Hadamard";
    static constexpr size_t kInputs = 2;

    Status read(const NodeInfo& info, std::string& problem) {
        int64_t number = 0;
        EDGEDEC_TRY(info.integer("block", &block));
        EDGEDEC_TRY(info.integer("inverse", &number));
        if (block < 2 || block > kMostBlock || (block & (block - 1)))
            problem = "block must be a power of two from 2 to " + std::to_string(kMostBlock);
        inverse = number != 0;
        return {};
    }
    Fit fit(const Shape* in) const {
        const int64_t width = in[0].dims.back();
        if (width % block) return {"the columns of its rows must be a multiple of the block"};
        return {in[1].count == width ? nullptr : "it must have a sign for each column", block};
    }
    void run(const RowPiece& at) const {
        for (int64_t i = at.first; i < at.first + at.count; i += block)
            at.path.transform(at.in[0] + i, at.in[1] + i % at.width, block, inverse, at.out + i);
    }

    int64_t block = 0;
    bool inverse = false;
};

// An operation without attributes on two values, of which the second may also be a row or, with kNumber, a single number.
template <class Function>
struct Binary {
    static constexpr const char* kKind = Function::kKind;
    static constexpr size_t kInputs = 2;
    enum Form : int32_t { kEqual, kRow, kNumber };

    static Status read(const NodeInfo&, std::string&) { return {}; }
    static Fit fit(const Shape* in) {
        const int64_t width = in[0].dims.back();
        const bool vector = in[1].dims.size() == 1;
        if (vector && in[1].count == width) return {nullptr, width, 0, kRow};
        if (Function::kNumber && vector && in[1].count == 1) return {nullptr, 1, 0, kNumber};
        return {in[0].dims == in[1].dims ? nullptr : "its inputs must have equal shapes", 1, 0, kEqual};
    }
    static void run(const RowPiece& at) {
        const float *const a = at.in[0], *const b = at.in[1];
        const int64_t end = at.first + at.count, step = at.fit.form == kRow ? at.width : at.count;
        if (at.fit.form == kNumber)
            for (int64_t i = at.first; i < end; ++i) at.out[i] = Function::of(a[i], b[0]);
        else
            for (int64_t i = at.first; i < end; i += step) apply(a + i, at.fit.form == kRow ? b : b + i, step, at.out + i);
    }
    static void apply(const float* __restrict a, const float* __restrict b, int64_t count, float* __restrict out) {
        for (int64_t i = 0; i < count; ++i) out[i] = Function::of(a[i], b[i]);
    }
};

struct Plus {
    static constexpr const char* kKind = "Add";
    static constexpr bool kNumber = false;
    static float of(float a, float b) { return a + b; }
};

struct Times {
    static constexpr const char* kKind = "Multiply";
    static constexpr bool kNumber = true;
    static float of(float a, float b) { return a * b; }
};

struct SoftCap {
    static constexpr const char* kKind = "SoftCap";
    static constexpr size_t kInputs = 1;
    static constexpr int64_t kBlock = 256;

    Status read(const NodeInfo& info, std::string& problem) { return read_number(info, "cap", true, cap, problem); }
    static Fit fit(const Shape*) { return {}; }
    void run(const RowPiece& at) const {
        float inner[kBlock], caps[kBlock];
        std::fill(caps, caps + kBlock, cap);
        for (int64_t i = at.first; i < at.first + at.count; i += kBlock) {
            const int64_t size = std::min(kBlock, at.first + at.count - i);
            for (int64_t j = 0; j < size; ++j) inner[j] = at.in[0][i + j] / cap;
            at.path.gate(static_cast<int32_t>(Activation::tanh), inner, caps, size, at.out + i);
        }
    }

    float cap = 1.0f;
};

struct FloatMatMul {
    static constexpr const char* kKind = "FloatMatMul";
    static constexpr size_t kInputs = 2;

    static Status read(const NodeInfo&, std::string&) { return {}; }
    static Fit fit(const Shape* in) {
        const int64_t width = in[0].dims.back();
        if (width < 1 || in[1].dims.size() != 2 || in[1].dims[1] != width || in[1].dims[0] < 1)
            return {"its matrix must have the columns of its rows"};
        return {nullptr, width, in[1].dims[0]};
    }
    static void run(const RowPiece& at) {
        const int64_t width = at.width, outputs = at.fit.columns;
        for (int64_t row = at.first / width; row < (at.first + at.count) / width; ++row)
            for (int64_t o = 0; o < outputs; ++o) {
                const float *const x = at.in[0] + row * width, *const weight = at.in[1] + o * width;
                at.out[row * outputs + o] = sum_of(width, [&](int64_t i) { return x[i] * weight[i]; });
            }
    }
};

}  // namespace

OperatorKind rms_norm() { return kind_of<Rowwise<RmsNorm>>(); }
OperatorKind layer_norm() { return kind_of<Rowwise<LayerNorm>>(); }
OperatorKind gated_activation() { return kind_of<Rowwise<GatedActivation>>(); }
OperatorKind hadamard() { return kind_of<Rowwise<Hadamard>>(); }
OperatorKind addition() { return kind_of<Rowwise<Binary<Plus>>>(); }
OperatorKind multiplication() { return kind_of<Rowwise<Binary<Times>>>(); }
OperatorKind soft_cap() { return kind_of<Rowwise<SoftCap>>(); }
OperatorKind float_matmul() { return kind_of<Rowwise<FloatMatMul>>(); }

}  // namespace edgedec
