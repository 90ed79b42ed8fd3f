// The nodes that a fused node contains, as edgedec/onnx/fusion.py writes them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "operators/operator.hpp"

namespace edgedec {

// Returns the lines of a text, of which the last one may lack its newline.
std::vector<std::string> lines_of(const std::string& text);

// The attributes of nodes. The bytes must outlive it.
class Records {
  public:
    enum Type : uint32_t { kIntegers = 1, kFloats = 2, kText = 3 };
    struct Field {
        std::string_view name;
        uint32_t type;
        uint32_t count;    // elements, or bytes of a text
        const char* data;  // not aligned
    };

    explicit Records(std::string_view bytes) : rest_(bytes) {}
    bool empty() const { return rest_.empty(); }
    // Reads the next node. Returns false if the bytes are not those of a node.
    bool next(std::string_view& kind, std::vector<Field>& fields);

  private:
    bool number(uint32_t& value);
    bool text(std::string_view& value);
    bool take(size_t bytes, std::string_view& taken);

    std::string_view rest_;
};

// One of these nodes. What it refers to must outlive it.
class RecordedNode final : public NodeInfo {
  public:
    explicit RecordedNode(const std::vector<Records::Field>& fields) : fields_(fields) {}
    // Sets the inputs: the number of each among `values`, of which those that are no constants have no data.
    void connect(const std::vector<int64_t>& inputs, const std::vector<Value>& values, size_t outputs) {
        inputs_ = &inputs, values_ = &values, outputs_ = outputs;
    }

    Status name(std::string& value) const override { return text("name", value); }
    Status integer(const char* name, int64_t* value) const override;
    Status number(const char* name, float* value) const override;
    Status text(const char* name, std::string& value) const override;
    Status list(const char* name, std::vector<int64_t>& values) const override;
    Status list(const char* name, std::vector<float>& values) const override;
    Status counts(size_t* inputs, size_t* outputs) const override;
    Status initializer(size_t index, Value& value) const override;

  private:
    Status find(const char* name, Records::Type type, const Records::Field** field) const;
    template <class T>
    Status one(const char* name, const char* what, T* value) const;
    template <class T>
    Status all(const char* name, Records::Type type, std::vector<T>& values) const;

    const std::vector<Records::Field>& fields_;
    const std::vector<int64_t>* inputs_ = nullptr;
    const std::vector<Value>* values_ = nullptr;
    size_t outputs_ = 0;
};

}  // namespace edgedec
