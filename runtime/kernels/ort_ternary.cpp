// The ONNX Runtime operator edgedec::TernaryMatMul: one activation times several ternary matrices (q, k and v; gate and up).
//
// Inputs: x float32 [..., columns], then for each matrix its packed codes (uint8), its packed scales (float32) and, if it has
// one, its bias (float32 [rows]); all but x are initializers. Attributes: columns (int), and one int per matrix in rows,
// planes, group_sizes and biases (0 or 1). Outputs: float32 [..., rows], one per matrix. x is quantized per token once.
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "onnxruntime/onnxruntime_c_api.h"
#include "staging.hpp"
#include "ternary.hpp"

#define EDGEDEC_TRY(call)                             \
    do {                                              \
        if (OrtStatus* status = (call)) return status; \
    } while (false)

namespace edgedec {
namespace {

constexpr size_t kMostMatrices = 16;
// Below this much work, in bytes of weights for one token, waking other threads costs more than it saves.
constexpr int64_t kSerialBytes = 128 << 10;

struct Shape {
    ONNXTensorElementDataType type;
    std::vector<int64_t> dims;
    int64_t count = 1;
};

OrtStatus* shape_of(const OrtApi& api, const OrtValue* value, Shape& shape) {
    OrtTensorTypeAndShapeInfo* info = nullptr;
    EDGEDEC_TRY(api.GetTensorTypeAndShape(value, &info));
    size_t rank = 0;
    OrtStatus* status = api.GetTensorElementType(info, &shape.type);
    if (!status) status = api.GetDimensionsCount(info, &rank);
    if (!status) {
        shape.dims.resize(rank);
        status = api.GetDimensions(info, shape.dims.data(), rank);
    }
    api.ReleaseTensorTypeAndShapeInfo(info);
    for (int64_t size : shape.dims) shape.count *= size;
    return status;
}

class Kernel {
  public:
    explicit Kernel(const OrtApi& api) : api_(api) {}

    OrtStatus* create(const OrtKernelInfo* info) {
        size_t length = 0;
        EDGEDEC_TRY(api_.KernelInfo_GetNodeName(info, nullptr, &length));
        node_.resize(length);
        EDGEDEC_TRY(api_.KernelInfo_GetNodeName(info, node_.data(), &length));
        node_.resize(length ? length - 1 : 0);  // a zero ends it
        const char* message = nullptr;
        path_ = chosen_path(&message);
        if (!path_) return refuse(message);

        std::vector<int64_t> outputs, planes, groups, biases;
        EDGEDEC_TRY(api_.KernelInfoGetAttribute_int64(info, "columns", &inputs_));
        EDGEDEC_TRY(list(info, "rows", outputs));
        EDGEDEC_TRY(list(info, "planes", planes));
        EDGEDEC_TRY(list(info, "group_sizes", groups));
        EDGEDEC_TRY(list(info, "biases", biases));
        size_t given = 0, results = 0, next = 1;
        EDGEDEC_TRY(api_.KernelInfo_GetInputCount(info, &given));
        EDGEDEC_TRY(api_.KernelInfo_GetOutputCount(info, &results));
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

    OrtStatus* compute(OrtKernelContext* context) const {
        const OrtValue* input = nullptr;
        EDGEDEC_TRY(api_.KernelContext_GetInput(context, 0, &input));
        Shape shape;
        EDGEDEC_TRY(shape_of(api_, input, shape));
        if (shape.type != ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT || shape.dims.empty() || shape.dims.back() != inputs_)
            return refuse("its activations must be float32 with " + std::to_string(inputs_) + " columns");
        const int64_t tokens = shape.count / inputs_;
        void* data = nullptr;
        EDGEDEC_TRY(api_.GetTensorMutableData(const_cast<OrtValue*>(input), &data));
        const float* x = static_cast<const float*>(data);

        float* outs[kMostMatrices] = {};
        for (size_t i = 0; i < matrices_.size(); ++i) {
            OrtValue* output = nullptr;
            shape.dims.back() = matrices_[i].outputs;
            EDGEDEC_TRY(api_.KernelContext_GetOutput(context, i, shape.dims.data(), shape.dims.size(), &output));
            EDGEDEC_TRY(api_.GetTensorMutableData(output, &data));
            outs[i] = static_cast<float*>(data);
        }
        if (!tokens) return nullptr;

        static thread_local Staging staging;  // kept from pass to pass: no allocation per token
        staging.resize(tokens, inputs_);
        for (int64_t t = 0; t < tokens; ++t) {
            path_->quantize(x + t * inputs_, inputs_, staging.codes(t), staging.stride(), staging.scale(t));
            for (size_t i = 0; i < matrices_.size(); ++i)
                if (first_of_its_groups(i)) staging.sum(*path_, t, matrices_[i].group_size);
        }
        const Pass pass{this, &staging, outs};
        if (bytes_ * tokens < kSerialBytes) {
            for (int64_t tile = 0; tile < tiles_; ++tile) run_tile(const_cast<Pass*>(&pass), static_cast<size_t>(tile));
            return nullptr;
        }
        return api_.KernelContext_ParallelFor(context, run_tile, static_cast<size_t>(tiles_), 0,
                                              const_cast<Pass*>(&pass));
    }

  private:
    struct Pass {
        const Kernel* kernel;
        const Staging* staging;
        float* const* outs;
    };

    // A thread gets neighbouring tiles: one sequential read.
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

    OrtStatus* refuse(const std::string& why) const {
        return api_.CreateStatus(ORT_INVALID_ARGUMENT, ("edgedec TernaryMatMul " + node_ + ": " + why).c_str());
    }

    OrtStatus* list(const OrtKernelInfo* info, const char* name, std::vector<int64_t>& values) const {
        size_t size = 0;
        EDGEDEC_TRY(api_.KernelInfoGetAttributeArray_int64(info, name, nullptr, &size));
        values.resize(size);
        return api_.KernelInfoGetAttributeArray_int64(info, name, values.data(), &size);
    }

    // An initializer, mapped or in memory: its address stays as long as the session.
    OrtStatus* constant(const OrtKernelInfo* info, size_t index, size_t given, ONNXTensorElementDataType type,
                        int64_t count, const void** data) const {
        const std::string which = "its input " + std::to_string(index);
        if (index >= given) return refuse(which + " is missing");
        int constant = 0;
        const OrtValue* value = nullptr;
        EDGEDEC_TRY(api_.KernelInfoGetConstantInput_tensor(info, index, &constant, &value));
        if (!constant) return refuse(which + " must be an initializer");
        Shape shape;
        EDGEDEC_TRY(shape_of(api_, value, shape));
        if (shape.type != type || shape.count != count)
            return refuse(which + " must hold " + std::to_string(count) +
                          (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8 ? " uint8" : " float32") + ", not " +
                          std::to_string(shape.count) + " of type " + std::to_string(shape.type));
        void* address = nullptr;
        EDGEDEC_TRY(api_.GetTensorMutableData(const_cast<OrtValue*>(value), &address));
        *data = address;
        if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT && reinterpret_cast<uintptr_t>(address) % alignof(float))
            return refuse(which + " is not aligned to 4 bytes");
        return nullptr;
    }

    const OrtApi& api_;
    const Path* path_ = nullptr;
    std::string node_;
    int64_t inputs_ = 0, tiles_ = 0, bytes_ = 0;
    std::vector<Ternary> matrices_;
};

// No exception may cross into ONNX Runtime.
template <class Body>
OrtStatus* guarded(const OrtApi& api, Body body) {
    try {
        return body();
    } catch (const std::bad_alloc&) {
        return api.CreateStatus(ORT_FAIL, "edgedec TernaryMatMul: not enough memory");
    }
}

const OrtApi* ort = nullptr;

OrtCustomOp describe() {
    OrtCustomOp op{};
    op.version = ORT_API_VERSION;
    op.GetName = [](const OrtCustomOp*) { return "TernaryMatMul"; };
    op.GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return nullptr; };
    op.GetInputTypeCount = [](const OrtCustomOp*) -> size_t { return 2; };
    op.GetInputType = [](const OrtCustomOp*, size_t index) {
        return index ? ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED : ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
    };
    op.GetOutputTypeCount = [](const OrtCustomOp*) -> size_t { return 1; };
    op.GetOutputType = [](const OrtCustomOp*, size_t) { return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT; };
    op.GetInputCharacteristic = [](const OrtCustomOp*, size_t index) {
        return index ? INPUT_OUTPUT_VARIADIC : INPUT_OUTPUT_REQUIRED;
    };
    op.GetOutputCharacteristic = [](const OrtCustomOp*, size_t) { return INPUT_OUTPUT_VARIADIC; };
    op.GetInputMemoryType = [](const OrtCustomOp*, size_t) { return OrtMemTypeDefault; };
    op.GetVariadicInputMinArity = [](const OrtCustomOp*) { return 2; };
    op.GetVariadicInputHomogeneity = [](const OrtCustomOp*) { return 0; };
    op.GetVariadicOutputMinArity = [](const OrtCustomOp*) { return 1; };
    op.GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 1; };
    op.CreateKernelV2 = [](const OrtCustomOp*, const OrtApi* api, const OrtKernelInfo* info,
                           void** kernel) -> OrtStatusPtr {
        return guarded(*api, [&]() -> OrtStatus* {
            Kernel* made = new Kernel(*api);
            if (OrtStatus* status = made->create(info)) {
                delete made;
                return status;
            }
            *kernel = made;
            return nullptr;
        });
    };
    op.KernelComputeV2 = [](void* kernel, OrtKernelContext* context) -> OrtStatusPtr {
        return guarded(*ort, [&] { return static_cast<const Kernel*>(kernel)->compute(context); });
    };
    op.KernelDestroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
    op.GetStartVersion = [](const OrtCustomOp*) { return 1; };
    op.GetEndVersion = [](const OrtCustomOp*) { return 1; };
    return op;
}

OrtStatus* make_domain(const OrtApi& api, OrtCustomOpDomain** domain) {
    static const OrtCustomOp op = describe();
    EDGEDEC_TRY(api.CreateCustomOpDomain("edgedec", domain));
    return api.CustomOpDomain_Add(*domain, &op);
}

}  // namespace
}  // namespace edgedec

// What SessionOptions.register_custom_ops_library looks for.
extern "C" __attribute__((visibility("default"))) OrtStatus* ORT_API_CALL
RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
    const OrtApi* api = base->GetApi(ORT_API_VERSION);
    if (!api)
        return base->GetApi(1)->CreateStatus(
            ORT_NOT_IMPLEMENTED, (std::string("edgedec's kernels need ONNX Runtime 1.17 or later, this is ") +
                                  base->GetVersionString()).c_str());
    const char* message = nullptr;
    if (!edgedec::chosen_path(&message)) return api->CreateStatus(ORT_INVALID_ARGUMENT, message);
    // Sessions keep pointing at the domain: one for the whole process, never given back.
    static OrtCustomOpDomain* domain = nullptr;
    static OrtStatus* const failed = (edgedec::ort = api, edgedec::make_domain(*api, &domain));
    if (failed) return api->CreateStatus(ORT_FAIL, "edgedec's operators could not be made");
    return api->AddCustomOpDomain(options, domain);
}
