// The reading of the nodes that a fused node contains.
#include "operators/records.hpp"

#include <cstring>

namespace edgedec {

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

Status RecordedNode::find(const char* name, Records::Type type, const Records::Field** field) const {
    for (const Records::Field& known : fields_)
        if (known.name == name && known.type == type) {
            *field = &known;
            return {};
        }
    return {Status::kFailed, "a contained node has no attribute " + std::string(name) + " of this type"};
}

Status RecordedNode::text(const char* name, std::string& value) const {
    const Records::Field* field = nullptr;
    EDGEDEC_TRY(find(name, Records::kText, &field));
    value.assign(field->data, field->count);
    return {};
}

template <class T>
Status RecordedNode::one(const char* name, const char* what, T* value) const {
    std::vector<T> values;
    EDGEDEC_TRY(list(name, values));
    if (values.size() != 1) return {Status::kFailed, std::string(name) + " must be one " + what};
    *value = values[0];
    return {};
}

template <class T>
Status RecordedNode::all(const char* name, Records::Type type, std::vector<T>& values) const {
    const Records::Field* field = nullptr;
    EDGEDEC_TRY(find(name, type, &field));
    values.resize(field->count);
    if (field->count) std::memcpy(values.data(), field->data, field->count * sizeof(T));
    return {};
}

Status RecordedNode::integer(const char* name, int64_t* value) const { return one(name, "integer", value); }
Status RecordedNode::number(const char* name, float* value) const { return one(name, "number", value); }

Status RecordedNode::list(const char* name, std::vector<int64_t>& values) const {
    return all(name, Records::kIntegers, values);
}

Status RecordedNode::list(const char* name, std::vector<float>& values) const { return all(name, Records::kFloats, values); }

Status RecordedNode::counts(size_t* inputs, size_t* outputs) const {
    *inputs = inputs_->size(), *outputs = outputs_;
    return {};
}

Status RecordedNode::initializer(size_t index, Value& value) const {
    value = (*values_)[static_cast<size_t>((*inputs_)[index])];
    return {};
}

}  // namespace edgedec
