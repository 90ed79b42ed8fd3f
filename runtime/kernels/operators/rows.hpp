// The base of the operators on rows of activations (rows.cpp, differences.cpp, values.cpp).
#pragma once

#include <string>
#include <vector>

#include "operators/operator.hpp"
#include "rows/rows.hpp"

namespace edgedec {

constexpr int64_t kPiece = 4096;              // elements that a thread computes at a time
constexpr int64_t kSerialElements = 16 << 10;  // number of elements below which one thread computes them all

class RowOperator : public Operator {
  public:
    explicit RowOperator(const char* kind) : Operator(kind) {}

    Status create(const NodeInfo& info) override {
        EDGEDEC_TRY(named(info));
        const char* message = nullptr;
        path_ = chosen_path(&message);
        return path_ ? Status() : refuse(message);
    }

  protected:
    // Calls body(first, count) for pieces of `count` elements, whose sizes are multiples of `unit` except the last.
    template <class Body>
    static Status pieces(NodeContext& context, int64_t count, int64_t unit, const Body& body) {
        const int64_t size = unit >= kPiece ? unit : kPiece / unit * unit;
        struct Pieces {
            const Body* body;
            int64_t count, size;
        } all{&body, count, size};
        const auto run = [](void* user, size_t index) {
            const Pieces& pieces = *static_cast<const Pieces*>(user);
            const int64_t first = static_cast<int64_t>(index) * pieces.size, left = pieces.count - first;
            (*pieces.body)(first, left < pieces.size ? left : pieces.size);
        };
        const auto total = static_cast<size_t>((count + size - 1) / size);
        if (count >= kSerialElements) return context.parallel(run, total, &all);
        for (size_t index = 0; index < total; ++index) run(&all, index);
        return {};
    }
    Status floats(NodeContext& context, size_t index, Shape& shape, const float** data) const {
        void* address = nullptr;
        EDGEDEC_TRY(context.input(index, shape, &address));
        if (shape.type != ElementType::float32 || shape.dims.empty()) return refuse("input " + std::to_string(index) + " must be float32");
        *data = static_cast<const float*>(address);
        return {};
    }

    const Path* path_ = nullptr;
};

}  // namespace edgedec
