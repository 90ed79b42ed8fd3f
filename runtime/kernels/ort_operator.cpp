// The domain "edgedec" of ONNX Runtime operators: their common parts and their registration.
#include "ort_operator.hpp"

#include <array>

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

OrtStatus* NodeInfo::integer(const char* name, int64_t* value) const {
    return api.KernelInfoGetAttribute_int64(info, (prefix + name).c_str(), value);
}

OrtStatus* NodeInfo::number(const char* name, float* value) const {
    return api.KernelInfoGetAttribute_float(info, (prefix + name).c_str(), value);
}

OrtStatus* NodeInfo::text(const char* name, std::string& value) const {
    size_t length = 0;
    EDGEDEC_TRY(api.KernelInfoGetAttribute_string(info, (prefix + name).c_str(), nullptr, &length));
    value.resize(length);
    EDGEDEC_TRY(api.KernelInfoGetAttribute_string(info, (prefix + name).c_str(), value.data(), &length));
    value.resize(length ? length - 1 : 0);  // without the terminating zero
    return nullptr;
}

OrtStatus* NodeInfo::list(const char* name, std::vector<int64_t>& values) const {
    size_t size = 0;
    const std::string whole = prefix + name;
    EDGEDEC_TRY(api.KernelInfoGetAttributeArray_int64(info, whole.c_str(), nullptr, &size));
    values.resize(size);
    return api.KernelInfoGetAttributeArray_int64(info, whole.c_str(), values.data(), &size);
}

OrtStatus* NodeInfo::list(const char* name, std::vector<float>& values) const {
    size_t size = 0;
    const std::string whole = prefix + name;
    EDGEDEC_TRY(api.KernelInfoGetAttributeArray_float(info, whole.c_str(), nullptr, &size));
    values.resize(size);
    return api.KernelInfoGetAttributeArray_float(info, whole.c_str(), values.data(), &size);
}

OrtStatus* NodeInfo::counts(size_t* in, size_t* out) const {
    if (inputs) {
        *in = inputs->size(), *out = contained_outputs;
        return nullptr;
    }
    EDGEDEC_TRY(api.KernelInfo_GetInputCount(info, in));
    return api.KernelInfo_GetOutputCount(info, out);
}

OrtStatus* NodeInfo::initializer(size_t index, const OrtValue** value) const {
    *value = nullptr;
    if (inputs) {
        index = static_cast<size_t>((*inputs)[index]);
        if (index >= session_inputs) return nullptr;
    }
    int constant = 0;
    EDGEDEC_TRY(api.KernelInfoGetConstantInput_tensor(info, index, &constant, value));
    if (!constant) *value = nullptr;
    return nullptr;
}

OrtStatus* Operator::named(const NodeInfo& info) {
    if (info.inputs) return info.text("name", node_);
    size_t length = 0;
    EDGEDEC_TRY(api_.KernelInfo_GetNodeName(info.info, nullptr, &length));
    node_.resize(length);
    EDGEDEC_TRY(api_.KernelInfo_GetNodeName(info.info, node_.data(), &length));
    node_.resize(length ? length - 1 : 0);  // without the terminating zero
    return nullptr;
}

OrtStatus* Operator::constant(const NodeInfo& info, size_t index, size_t given, ONNXTensorElementDataType type,
                              int64_t count, const void** data) const {
    const std::string which = "its input " + std::to_string(index);
    if (index >= given) return refuse(which + " is missing");
    const OrtValue* value = nullptr;
    EDGEDEC_TRY(info.initializer(index, &value));
    if (!value) return refuse(which + " must be an initializer");
    Shape shape;
    EDGEDEC_TRY(shape_of(api_, value, shape));
    if (shape.type != type || shape.count != count) {
        const char* wanted = type == ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8     ? " uint8"
                             : type == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8    ? " int8"
                             : type == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16 ? " float16"
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

OrtStatus* SessionContext::input(size_t index, Shape& shape, void** data) {
    const OrtValue* value = nullptr;
    EDGEDEC_TRY(api_.KernelContext_GetInput(context_, index, &value));
    EDGEDEC_TRY(shape_of(api_, value, shape));
    return api_.GetTensorMutableData(const_cast<OrtValue*>(value), data);
}

OrtStatus* SessionContext::output(size_t index, const std::vector<int64_t>& dims, float** data) {
    OrtValue* value = nullptr;
    EDGEDEC_TRY(api_.KernelContext_GetOutput(context_, index, dims.data(), dims.size(), &value));
    void* address = nullptr;
    EDGEDEC_TRY(api_.GetTensorMutableData(value, &address));
    *data = static_cast<float*>(address);
    return nullptr;
}

namespace {

using Kinds = std::array<OperatorKind, 17>;

const Kinds& kinds() {
    static const Kinds all = {ternary_matmul(), int8_matmul(), grid_matmul(), tree_attention(), rms_norm(),
                              gated_activation(), hadamard(), addition(), row_selection(), causal_conv(),
                              selective_scan(), channel_scan(), gated_delta_rule(), float_matmul(), columns(),
                              layer_norm(), head_difference()};
    return all;
}

OrtStatus* make_domain(const OrtApi& api, OrtCustomOpDomain** domain) {
    EDGEDEC_TRY(api.CreateCustomOpDomain("edgedec", domain));
    for (const OperatorKind& kind : kinds()) EDGEDEC_TRY(api.CustomOpDomain_Add(*domain, kind.description));
    return api.CustomOpDomain_Add(*domain, fused_nodes());
}

}  // namespace

OperatorKind find_kind(const std::string& name) {
    for (const OperatorKind& kind : kinds())
        if (name == kind.name) return kind;
    return {nullptr, nullptr, nullptr};
}

OrtStatus* add_operators(OrtSessionOptions* options) {
    // Sessions keep pointers to the domain, so there is one for the whole process, which is never freed.
    static OrtCustomOpDomain* domain = nullptr;
    static OrtStatus* const failed = make_domain(*ort, &domain);
    if (failed) return ort->CreateStatus(ORT_FAIL, "edgedec's operators could not be made");
    return ort->AddCustomOpDomain(options, domain);
}

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
    edgedec::ort = api;
    return edgedec::add_operators(options);
}
