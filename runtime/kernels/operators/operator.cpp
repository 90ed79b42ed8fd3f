// The refusal of constants that do not fit, and the list of kinds.
#include "operators/operator.hpp"

namespace edgedec {

Status Operator::constant(const NodeInfo& info, size_t index, size_t given, ElementType type, int64_t count,
                          const void** data) const {
    const std::string which = "its input " + std::to_string(index);
    if (index >= given) return refuse(which + " is missing");
    Value value;
    EDGEDEC_TRY(info.initializer(index, value));
    if (!value.data) return refuse(which + " must be an initializer");
    const Shape& shape = value.shape;
    if (shape.type != type || shape.count != count) {
        const char* wanted = type == ElementType::uint8     ? " uint8"
                             : type == ElementType::int8    ? " int8"
                             : type == ElementType::float16 ? " float16"
                                                            : " float32";
        return refuse(which + " must hold " + std::to_string(count) + wanted + ", not " + std::to_string(shape.count) +
                      " of type " + std::to_string(static_cast<int32_t>(shape.type)));
    }
    *data = value.data;
    if (type == ElementType::float32 && reinterpret_cast<uintptr_t>(value.data) % alignof(float))
        return refuse(which + " is not aligned to 4 bytes");
    return {};
}

const std::vector<OperatorKind>& contained_kinds() {
    static const std::vector<OperatorKind> all = {
        ternary_matmul(), int8_matmul(),    grid_matmul(),     tree_attention(), rms_norm(),
        gated_activation(), hadamard(),     addition(),        row_selection(),  causal_conv(),
        selective_scan(), channel_scan(),   gated_delta_rule(), float_matmul(),  columns(),
        layer_norm(),     head_difference(), multiplication(), soft_cap(),       rotation()};
    return all;
}

}  // namespace edgedec
