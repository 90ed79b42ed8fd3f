// The ONNX Runtime operator edgedec::TernaryMatMul, the products of one activation and several ternary matrices (q, k and v;
// gate and up).
//
// Inputs: x float32 [..., columns], then for each matrix its packed codes (uint8), its packed scales (float32) and, if it has
// one, its bias (float32 [rows]); all except x are initializers. Attributes: columns (int), and one int per matrix in rows,
// planes, group_sizes and biases (0 or 1). Outputs: float32 [..., rows], one per matrix. x is quantized once, per token.
#include <string>
#include <vector>

#include "ort_operator.hpp"
#include "staging.hpp"
#include "ternary.hpp"

namespace edgedec {
namespace {

constexpr size_t kMostMatrices = 16;
// Amount of work, in bytes of weights times tokens, below which waking other threads costs more than it saves.
constexpr int64_t kSerialBytes = 128 << 10;

class Kernel : public Operator {
  public:
    static constexpr const char* kKind = "TernaryMatMul";
    explicit Kernel(const OrtApi& api) : Operator(api, kKind) {}

    OrtStatus* create(const NodeInfo& info) override {
        EDGEDEC_TRY(named(info));
        const char* message = nullptr;
        path_ = chosen_path(&message);
        if (!path_) return refuse(message);

        std::vector<int64_t> outputs, planes, groups, biases;
        EDGEDEC_TRY(info.integer("columns", &inputs_));
        EDGEDEC_TRY(info.list("rows", outputs));
        EDGEDEC_TRY(info.list("planes", planes));
        EDGEDEC_TRY(info.list("group_sizes", groups));
        EDGEDEC_TRY(info.list("biases", biases));
        size_t given = 0, results = 0, next = 1;
        EDGEDEC_TRY(info.counts(&given, &results));
        const size_t count = outputs.size();
        if (!count || count > kMostMatrices || planes.size() != count || groups.size() != count ||
            biases.size() != count || results != count)
            return refuse("rows, planes, group_sizes and biases need one entry per output, 1 to 16");
        for (size_t i = 0; i < count; ++i) {
            if (planes[i] < 0 || planes[i] > 3 || groups[i] < 0 || groups[i] > 128) planes[i] = 0;
            Ternary w{outputs[i], inputs_, static_cast<int32_t>(planes[i]), static_cast<int32_t>(groups[i]),
                      nullptr,    nullptr, nullptr};
            if (w.problem()) return refuse(w.problem());
            const void* data = nullptr;
            EDGEDEC_TRY(constant(info, next++, given, ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8, w.code_bytes(), &data));
            w.codes = static_cast<const uint8_t*>(data);
            EDGEDEC_TRY(constant(info, next++, given, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, w.scale_count(), &data));
            w.scales = static_cast<const float*>(data);
            if (biases[i]) {
                EDGEDEC_TRY(constant(info, next++, given, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, outputs[i], &data));
                w.bias = static_cast<const float*>(data);
            }
            tiles_ += w.tiles();
            bytes_ += w.code_bytes();
            matrices_.push_back(w);
        }
        if (next != given) return refuse("has more inputs than its attributes say");
        return nullptr;
    }

    OrtStatus* compute(NodeContext& context) const override {
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

        static thread_local Staging staging;  // kept from pass to pass to avoid allocations
        staging.resize(tokens, inputs_);
        for (int64_t t = 0; t < tokens; ++t) {
            path_->quantize(x + t * inputs_, inputs_, staging.codes(t), staging.stride(), staging.scale(t));
            for (size_t i = 0; i < matrices_.size(); ++i)
                if (first_of_its_groups(i)) staging.sum(*path_, t, matrices_[i].group_size);
        }
        staging.arrange(*path_);
        const Pass pass{this, &staging, outs};
        if (bytes_ * tokens < kSerialBytes) {
            for (int64_t tile = 0; tile < tiles_; ++tile) run_tile(const_cast<Pass*>(&pass), static_cast<size_t>(tile));
            return nullptr;
        }
        return context.parallel(run_tile, static_cast<size_t>(tiles_), const_cast<Pass*>(&pass));
    }

  private:
    struct Pass {
        const Kernel* kernel;
        const Staging* staging;
        float* const* outs;
    };

    // Computes one tile. ONNX Runtime gives a thread neighbouring tiles, which it reads sequentially.
    static void run_tile(void* user, size_t index) {
        const Pass& pass = *static_cast<const Pass*>(user);
        int64_t tile = static_cast<int64_t>(index);
        size_t i = 0;
        for (; tile >= pass.kernel->matrices_[i].tiles(); ++i) tile -= pass.kernel->matrices_[i].tiles();
        const Ternary& w = pass.kernel->matrices_[i];
        pass.kernel->path_->tile(w, pass.staging->view(w.group_size), tile, pass.outs[i], w.outputs);
    }

    bool first_of_its_groups(size_t i) const {
        for (size_t j = 0; j < i; ++j)
            if (matrices_[j].group_size == matrices_[i].group_size) return false;
        return true;
    }

    const Path* path_ = nullptr;
    int64_t inputs_ = 0, tiles_ = 0, bytes_ = 0;
    std::vector<Ternary> matrices_;
};

}  // namespace

OperatorKind ternary_matmul() { return kind_of<Kernel>(); }

}  // namespace edgedec
