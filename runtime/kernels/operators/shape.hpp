// Shapes and types of tensors.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace edgedec {

// Types of elements, by the numbers that ONNX gives them.
enum class ElementType : int32_t { float32 = 1, uint8 = 2, int8 = 3, int32 = 6, int64 = 7, float16 = 10 };

struct Shape {
    ElementType type = ElementType::float32;
    std::vector<int64_t> dims;
    int64_t count = 0;  // elements

    // Sets `count` to the number of elements of `dims`.
    void counted() {
        count = 1;
        for (int64_t size : dims) count *= size;
    }
};

// The shape and the memory of a tensor.
struct Value {
    Shape shape;
    void* data = nullptr;
};

}  // namespace edgedec
