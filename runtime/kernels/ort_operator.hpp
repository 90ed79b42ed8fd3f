// The parts of ONNX Runtime's C interface that the operators of the domain "edgedec" need.
#pragma once

#include <cstdint>
#include <new>
#include <string>
#include <vector>

#include "onnxruntime/onnxruntime_c_api.h"

#define EDGEDEC_TRY(call)                              \
    do {                                               \
        if (OrtStatus* status = (call)) return status; \
    } while (false)

namespace edgedec {

struct Shape {
    ONNXTensorElementDataType type;
    std::vector<int64_t> dims;
    int64_t count = 1;
};

OrtStatus* shape_of(const OrtApi& api, const OrtValue* value, Shape& shape);

// The base of kernels. Its error messages name the kind of operator and the node.
class Operator {
  public:
    Operator(const OrtApi& api, const char* kind) : api_(api), kind_(kind) {}

  protected:
    OrtStatus* named(const OrtKernelInfo* info);  // call it first: messages need the node's name
    OrtStatus* refuse(const std::string& why) const {
        return api_.CreateStatus(ORT_INVALID_ARGUMENT, ("edgedec " + std::string(kind_) + " " + node_ + ": " + why).c_str());
    }
    OrtStatus* list(const OrtKernelInfo* info, const char* name, std::vector<int64_t>& values) const;
    // Returns an initializer's address, which is valid as long as the session.
    OrtStatus* constant(const OrtKernelInfo* info, size_t index, size_t given, ONNXTensorElementDataType type,
                        int64_t count, const void** data) const;
    OrtStatus* input(OrtKernelContext* context, size_t index, Shape& shape, void** data) const;
    OrtStatus* output(OrtKernelContext* context, size_t index, const std::vector<int64_t>& dims, float** data) const;

    const OrtApi& api_;

  private:
    const char* kind_;
    std::string node_;
};

// Runs `body` and turns exceptions into a status, because no exception may pass into ONNX Runtime.
template <class Body>
OrtStatus* guarded(const OrtApi& api, Body body) {
    try {
        return body();
    } catch (const std::bad_alloc&) {
        return api.CreateStatus(ORT_FAIL, "edgedec's kernels: not enough memory");
    }
}

// The interface of the ONNX Runtime that loaded the library, for KernelComputeV2, which does not get it as an argument.
extern const OrtApi* ort;

// Returns the description of an operator with the kernel class Kernel, which has Kernel(api), OrtStatus* create(info) and
// OrtStatus* compute(context) const. Kernel checks the inputs and outputs; here they are variadic lists of any type.
template <class Kernel>
OrtCustomOp describe() {
    OrtCustomOp op{};
    op.version = ORT_API_VERSION;
    op.GetName = [](const OrtCustomOp*) { return Kernel::kKind; };
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
    op.GetVariadicInputMinArity = [](const OrtCustomOp*) { return 1; };
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

// The descriptions of the operators; each is defined in the operator's file.
const OrtCustomOp* ternary_matmul();
const OrtCustomOp* int8_matmul();
const OrtCustomOp* grid_matmul();
const OrtCustomOp* tree_attention();

}  // namespace edgedec
