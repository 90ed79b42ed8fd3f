// The domain "edgedec" of ONNX Runtime operators: their common parts and their registration.
#include "operators/operator.hpp"

#include <array>
#include <cstring>

#include "products/ternary.hpp"

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

std::vector<std::string> lines_of(const std::string& text) {
    std::vector<std::string> lines;
    for (size_t start = 0; start < text.size();) {
        const size_t newline = text.find('\n', start), end = newline == std::string::npos ? text.size() : newline;
        lines.push_back(text.substr(start, end - start));
        start = end + 1;
    }
    return lines;
}

bool Records::take(size_t bytes, std::string_view& taken) {
    if (rest_.size() < bytes) return false;
    taken = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return true;
}

bool Records::number(uint32_t& value) {
    std::string_view bytes;
    if (!take(sizeof value, bytes)) return false;
    std::memcpy(&value, bytes.data(), sizeof value);
    return true;
}

bool Records::text(std::string_view& value) {
    uint32_t size = 0;
    return number(size) && take(size, value);
}

bool Records::next(std::string_view& kind, std::vector<Field>& fields) {
    uint32_t count = 0;
    if (!text(kind) || !number(count)) return false;
    fields.clear();
    for (; count; --count) {
        Field field{};
        std::string_view data;
        if (!text(field.name) || !number(field.type) || !number(field.count)) return false;
        if (field.type != kIntegers && field.type != kFloats && field.type != kText) return false;
        const size_t element = field.type == kIntegers ? sizeof(int64_t) : field.type == kFloats ? sizeof(float) : 1;
        if (!take(element * field.count, data)) return false;
        field.data = data.data();
        fields.push_back(field);
    }
    return true;
}

OrtStatus* NodeInfo::find(const char* name, Records::Type type, const Records::Field** field) const {
    for (const Records::Field& it : *fields)
        if (it.name == name && it.type == type) {
            *field = &it;
            return nullptr;
        }
    return api.CreateStatus(ORT_FAIL, ("a contained node has no attribute " + std::string(name) + " of this type").c_str());
}

OrtStatus* NodeInfo::integer(const char* name, int64_t* value) const {
    if (!fields) return api.KernelInfoGetAttribute_int64(info, name, value);
    std::vector<int64_t> values;
    EDGEDEC_TRY(list(name, values));
    if (values.size() != 1) return api.CreateStatus(ORT_FAIL, (std::string(name) + " must be one integer").c_str());
    *value = values[0];
    return nullptr;
}

OrtStatus* NodeInfo::number(const char* name, float* value) const {
    if (!fields) return api.KernelInfoGetAttribute_float(info, name, value);
    std::vector<float> values;
    EDGEDEC_TRY(list(name, values));
    if (values.size() != 1) return api.CreateStatus(ORT_FAIL, (std::string(name) + " must be one number").c_str());
    *value = values[0];
    return nullptr;
}

OrtStatus* NodeInfo::text(const char* name, std::string& value) const {
    if (fields) {
        const Records::Field* field = nullptr;
        EDGEDEC_TRY(find(name, Records::kText, &field));
        value.assign(field->data, field->count);
        return nullptr;
    }
    size_t length = 0;
    EDGEDEC_TRY(api.KernelInfoGetAttribute_string(info, name, nullptr, &length));
    value.resize(length);
    EDGEDEC_TRY(api.KernelInfoGetAttribute_string(info, name, value.data(), &length));
    value.resize(length ? length - 1 : 0);  // without the terminating zero
    return nullptr;
}

OrtStatus* NodeInfo::list(const char* name, std::vector<int64_t>& values) const {
    if (fields) {
        const Records::Field* field = nullptr;
        EDGEDEC_TRY(find(name, Records::kIntegers, &field));
        values.resize(field->count);
        if (field->count) std::memcpy(values.data(), field->data, field->count * sizeof(int64_t));
        return nullptr;
    }
    size_t size = 0;
    EDGEDEC_TRY(api.KernelInfoGetAttributeArray_int64(info, name, nullptr, &size));
    values.resize(size);
    return api.KernelInfoGetAttributeArray_int64(info, name, values.data(), &size);
}

OrtStatus* NodeInfo::list(const char* name, std::vector<float>& values) const {
    if (fields) {
        const Records::Field* field = nullptr;
        EDGEDEC_TRY(find(name, Records::kFloats, &field));
        values.resize(field->count);
        if (field->count) std::memcpy(values.data(), field->data, field->count * sizeof(float));
        return nullptr;
    }
    size_t size = 0;
    EDGEDEC_TRY(api.KernelInfoGetAttributeArray_float(info, name, nullptr, &size));
    values.resize(size);
    return api.KernelInfoGetAttributeArray_float(info, name, values.data(), &size);
}

OrtStatus* NodeInfo::counts(size_t* in, size_t* out) const {
    if (inputs) {
        *in = inputs->size(), *out = contained_outputs;
        return nullptr;
    }
    EDGEDEC_TRY(api.KernelInfo_GetInputCount(info, in));
    return api.KernelInfo_GetOutputCount(info, out);
}

OrtStatus* NodeInfo::initializer(size_t index, Value& value) const {
    value = Value{};
    if (inputs) {
        value = (*values)[static_cast<size_t>((*inputs)[index])];
        return nullptr;
    }
    int is_constant = 0;
    const OrtValue* tensor = nullptr;
    EDGEDEC_TRY(api.KernelInfoGetConstantInput_tensor(info, index, &is_constant, &tensor));
    if (!is_constant) return nullptr;
    EDGEDEC_TRY(shape_of(api, tensor, value.shape));
    return api.GetTensorMutableData(const_cast<OrtValue*>(tensor), &value.data);
}

OrtStatus* Operator::named(const NodeInfo& info) {
    if (info.fields) return info.text("name", node_);
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
    Value value;
    EDGEDEC_TRY(info.initializer(index, value));
    if (!value.data) return refuse(which + " must be an initializer");
    const Shape& shape = value.shape;
    if (shape.type != type || shape.count != count) {
        const char* wanted = type == ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8     ? " uint8"
                             : type == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8    ? " int8"
                             : type == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16 ? " float16"
                                                                             : " float32";
        return refuse(which + " must hold " + std::to_string(count) + wanted + ", not " + std::to_string(shape.count) +
                      " of type " + std::to_string(shape.type));
    }
    *data = value.data;
    if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT && reinterpret_cast<uintptr_t>(value.data) % alignof(float))
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

using Kinds = std::array<OperatorKind, 20>;

const Kinds& kinds() {
    static const Kinds all = {ternary_matmul(), int8_matmul(), grid_matmul(), tree_attention(), rms_norm(),
                              gated_activation(), hadamard(), addition(), row_selection(), causal_conv(),
                              selective_scan(), channel_scan(), gated_delta_rule(), float_matmul(), columns(),
                              layer_norm(), head_difference(), multiplication(), soft_cap(), rotation()};
    return all;
}

OrtStatus* make_domain(const OrtApi& api, bool others, OrtCustomOpDomain** domain) {
    EDGEDEC_TRY(api.CreateCustomOpDomain("edgedec", domain));
    if (others)
        for (const OperatorKind& kind : kinds()) EDGEDEC_TRY(api.CustomOpDomain_Add(*domain, kind.description));
    return api.CustomOpDomain_Add(*domain, fused_nodes());
}

// Sessions keep pointers to their domain, so there is one of each kind for the whole process, which is never freed.
struct Domain {
    explicit Domain(bool others) : failed(make_domain(*ort, others, &domain)) {}
    OrtCustomOpDomain* domain = nullptr;
    OrtStatus* failed;
};

}  // namespace

OperatorKind find_kind(std::string_view name) {
    for (const OperatorKind& kind : kinds())
        if (name == kind.name) return kind;
    return {nullptr, nullptr, nullptr};
}

OrtStatus* add_operators(OrtSessionOptions* options, bool others) {
    static const Domain all(true), fused(false);
    const Domain& chosen = others ? all : fused;
    if (chosen.failed) return ort->CreateStatus(ORT_FAIL, "edgedec's operators could not be made");
    return ort->AddCustomOpDomain(options, chosen.domain);
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
    return edgedec::add_operators(options, true);
}
