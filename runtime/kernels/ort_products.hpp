// The common part of the operators for products of one activation and several matrices.
#pragma once

#include <string>
#include <vector>

#include "ort_operator.hpp"
#include "staging.hpp"

namespace edgedec {

constexpr size_t kMostMatrices = 16;
// Amount of work, in bytes of weights times tokens, below which waking other threads costs more than it saves.
constexpr int64_t kSerialBytes = 128 << 10;
// Number of activations below which one thread quantizes all of them.
constexpr int64_t kSerialElements = 4096;

// Kernel is the subclass. It has kKind and
//     void arrange(Staging&) const                                 puts the codes of all tokens into further forms
//     void run_part(const Staging&, size_t part, float* const* outs) const
//     Weights part_weights(size_t part) const                      returns the weights of a matrix from this part on
//     static int32_t group_size(const Matrix&)
// and its `create` fills the members.
template <class Kernel, class Matrix>
class Products : public Operator, private Upcoming {
  public:
    const Upcoming* upcoming() const final { return this; }
    OrtStatus* compute(NodeContext& context) const final {
        Shape shape;
        void* data = nullptr;
        EDGEDEC_TRY(context.input(0, shape, &data));
        if (shape.type != ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT || shape.dims.empty() || shape.dims.back() != inputs_)
            return refuse("its activations must be float32 with " + std::to_string(inputs_) + " columns");
        const int64_t tokens = shape.count / inputs_;
        const float* x = static_cast<const float*>(data);

        float* outs[kMostMatrices] = {};
        for (size_t i = 0; i < matrices_.size(); ++i) {
            shape.dims.back() = matrices_[i].outputs;
            EDGEDEC_TRY(context.output(i, shape.dims, &outs[i]));
        }
        if (!tokens) return nullptr;

        Staging& staging = thread_staging();
        staging.resize(tokens, inputs_);
        Rows rows{this, &staging, x};
        if (tokens > 1 && shape.count >= kSerialElements)
            EDGEDEC_TRY(context.parallel(quantize, static_cast<size_t>(tokens), &rows));
        else
            for (int64_t t = 0; t < tokens; ++t) quantize(&rows, static_cast<size_t>(t));
        kernel().arrange(staging);
        Pass pass{&kernel(), &staging, outs};
        if (bytes_ * tokens < kSerialBytes) {
            for (size_t part = 0; part < parts_; ++part) run(&pass, part);
            return nullptr;
        }
        return context.parallel(run, parts_, &pass);
    }

  protected:
    explicit Products(const OrtApi& api) : Operator(api, Kernel::kKind) {}

    // Computes one tile of the matrices, which are numbered one matrix after another.
    template <class Tile>
    auto run_tile(size_t part, Tile tile) const {
        auto at = static_cast<int64_t>(part);
        size_t i = 0;
        for (; at >= matrices_[i].tiles(); ++i) at -= matrices_[i].tiles();
        return tile(i, matrices_[i], at);
    }

    const Path* path_ = nullptr;
    int64_t inputs_ = 0, bytes_ = 0;
    size_t parts_ = 0;  // ONNX Runtime gives a thread neighbouring parts, which it reads sequentially
    std::vector<Matrix> matrices_;

  private:
    struct Rows {
        const Products* products;
        Staging* staging;
        const float* x;
    };
    struct Pass {
        const Kernel* kernel;
        const Staging* staging;
        float* const* outs;
    };

    Weights weights(size_t member, size_t members) const final { return kernel().part_weights(parts_ * member / members); }

    // Computes the codes of one token, and their sums.
    static void quantize(void* user, size_t token) {
        const Rows& rows = *static_cast<const Rows*>(user);
        const Products& products = *rows.products;
        const auto t = static_cast<int64_t>(token);
        Staging& staging = *rows.staging;
        products.path_->quantize(rows.x + t * products.inputs_, products.inputs_, staging.codes(t), staging.stride(),
                                 staging.scale(t));
        for (size_t i = 0; i < products.matrices_.size(); ++i)
            if (products.first_of_its_groups(i))
                staging.sum(*products.path_, t, Kernel::group_size(products.matrices_[i]));
    }
    static void run(void* user, size_t part) {
        const Pass& pass = *static_cast<const Pass*>(user);
        pass.kernel->run_part(*pass.staging, part, pass.outs);
    }

    const Kernel& kernel() const { return static_cast<const Kernel&>(*this); }

    bool first_of_its_groups(size_t i) const {
        for (size_t j = 0; j < i; ++j)
            if (Kernel::group_size(matrices_[j]) == Kernel::group_size(matrices_[i])) return false;
        return true;
    }
};

}  // namespace edgedec
