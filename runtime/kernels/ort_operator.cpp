// The domain "edgedec" of ONNX Runtime operators: their common parts and their registration.
#include "ort_operator.hpp"

#include "ternary.hpp"

namespace edgedec {

const OrtApi* ort = nullptr;

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
    shape.count = 1;
    for (int64_t size : shape.dims) shape.count *= size;
    return status;
}

OrtStatus* Operator::named(const OrtKernelInfo* info) {
    size_t length = 0;
    EDGEDEC_TRY(api_.KernelInfo_GetNodeName(info, nullptr, &length));
    node_.resize(length);
    EDGEDEC_TRY(api_.KernelInfo_GetNodeName(info, node_.data(), &length));
    node_.resize(length ? length - 1 : 0);  // without the terminating zero
    return nullptr;
}

OrtStatus* Operator::list(const OrtKernelInfo* info, const char* name, std::vector<int64_t>& values) const {
    size_t size = 0;
    EDGEDEC_TRY(api_.KernelInfoGetAttributeArray_int64(info, name, nullptr, &size));
    values.resize(size);
    return api_.KernelInfoGetAttributeArray_int64(info, name, values.data(), &size);
}

OrtStatus* Operator::constant(const OrtKernelInfo* info, size_t index, size_t given, ONNXTensorElementDataType type,
                              int64_t count, const void** data) const {
    const std::string which = "its input " + std::to_string(index);
    if (index >= given) return refuse(which + " is missing");
    int constant = 0;
    const OrtValue* value = nullptr;
    EDGEDEC_TRY(api_.KernelInfoGetConstantInput_tensor(info, index, &constant, &value));
    if (!constant) return refuse(which + " must be an initializer");
    Shape shape;
    EDGEDEC_TRY(shape_of(api_, value, shape));
    if (shape.type != type || shape.count != count) {
        const char* wanted = type == ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8  ? " uint8"
                             : type == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8 ? " int8"
                                                                          : " float32";
        return refuse(which + " must hold " + std::to_string(count) + wanted + ", not " + std::to_string(shape.count) +
                      " of type " + std::to_string(shape.type));
    }
    void* address = nullptr;
    EDGEDEC_TRY(api_.GetTensorMutableData(const_cast<OrtValue*>(value), &address));
    *data = address;
    if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT && reinterpret_cast<uintptr_t>(address) % alignof(float))
        return refuse(which + " is not aligned to 4 bytes");
    return nullptr;
}

OrtStatus* Operator::input(OrtKernelContext* context, size_t index, Shape& shape, void** data) const {
    const OrtValue* value = nullptr;
    EDGEDEC_TRY(api_.KernelContext_GetInput(context, index, &value));
    EDGEDEC_TRY(shape_of(api_, value, shape));
    return api_.GetTensorMutableData(const_cast<OrtValue*>(value), data);
}

OrtStatus* Operator::output(OrtKernelContext* context, size_t index, const std::vector<int64_t>& dims,
                            float** data) const {
    OrtValue* value = nullptr;
    EDGEDEC_TRY(api_.KernelContext_GetOutput(context, index, dims.data(), dims.size(), &value));
    void* address = nullptr;
    EDGEDEC_TRY(api_.GetTensorMutableData(value, &address));
    *data = static_cast<float*>(address);
    return nullptr;
}

namespace {

OrtStatus* make_domain(const OrtApi& api, OrtCustomOpDomain** domain) {
    EDGEDEC_TRY(api.CreateCustomOpDomain("edgedec", domain));
    for (const OrtCustomOp* op : {ternary_matmul(), int8_matmul(), grid_matmul(), tree_attention()})
        EDGEDEC_TRY(api.CustomOpDomain_Add(*domain, op));
    return nullptr;
}

}  // namespace
}  // namespace edgedec

// The function that SessionOptions.register_custom_ops_library calls.
extern "C" __attribute__((visibility("default"))) OrtStatus* ORT_API_CALL
RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
    const OrtApi* api = base->GetApi(ORT_API_VERSION);
    if (!api)
        return base->GetApi(1)->CreateStatus(
            ORT_NOT_IMPLEMENTED, (std::string("edgedec's kernels need ONNX Runtime 1.17 or later, this is ") +
                                  base->GetVersionString()).c_str());
    const char* message = nullptr;
    if (!edgedec::chosen_path(&message)) return api->CreateStatus(ORT_INVALID_ARGUMENT, message);
    // Sessions keep pointers to the domain, so there is one for the whole process, which is never freed.
    static OrtCustomOpDomain* domain = nullptr;
    static OrtStatus* const failed = (edgedec::ort = api, edgedec::make_domain(*api, &domain));
    if (failed) return api->CreateStatus(ORT_FAIL, "edgedec's operators could not be made");
    return api->AddCustomOpDomain(options, domain);
}
