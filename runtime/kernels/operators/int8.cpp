// The operator edgedec::Int8MatMul, the products of one activation and several int8 matrices (q, k and v; gate
// and up).
//
// Inputs: x float32 [..., columns], then for each matrix its codes (int8 [rows, columns], or [columns, rows]), its scales
// (float32 [rows]) and, if it has one, its bias (float32 [rows]); all except x are initializers, which are not copied.
// Attributes: columns (int), and one int per matrix in rows, by_rows (1: codes are [rows, columns]) and biases (0 or
// 1). Outputs: float32 [..., rows], one per matrix. x is quantized once, per token.
#include <string>
#include <vector>

#include "products/int8.hpp"
#include "operators/products.hpp"

namespace edgedec {
namespace {

class Kernel final : public Products<Kernel, Int8Matrix> {
  public:
    static constexpr const char* kKind = "Int8MatMul";

    Status create(const NodeInfo& info) override {
        EDGEDEC_TRY(named(info));
        const char* message = nullptr;
        path_ = chosen_path(&message);
        if (!path_) return refuse(message);

        std::vector<int64_t> outputs, by_rows, biases;
        EDGEDEC_TRY(info.integer("columns", &inputs_));
        EDGEDEC_TRY(info.list("rows", outputs));
        EDGEDEC_TRY(info.list("by_rows", by_rows));
        EDGEDEC_TRY(info.list("biases", biases));
        size_t given = 0, results = 0, next = 1;
        EDGEDEC_TRY(info.counts(&given, &results));
        const size_t count = outputs.size();
        if (!count || count > kMostMatrices || by_rows.size() != count || biases.size() != count || results != count)
            return refuse("rows, by_rows and biases need one entry per output, 1 to 16");
        for (size_t i = 0; i < count; ++i) {
            Int8Matrix w{outputs[i], inputs_, by_rows[i] != 0, nullptr, nullptr, nullptr};
            if (w.problem()) return refuse(w.problem());
            const void* data = nullptr;
            EDGEDEC_TRY(codes(info, next++, given, w));
            EDGEDEC_TRY(constant(info, next++, given, ElementType::float32, outputs[i], &data));
            w.scales = static_cast<const float*>(data);
            if (biases[i]) {
                EDGEDEC_TRY(constant(info, next++, given, ElementType::float32, outputs[i], &data));
                w.bias = static_cast<const float*>(data);
            }
            for (int64_t first = 0; first < w.outputs; first += w.part()) columns_.push_back({i, first});
            bytes_ += w.outputs * w.inputs;
            matrices_.push_back(w);
        }
        if (next != given) return refuse("has more inputs than its attributes say");
        parts_ = columns_.size();
        find_streams();
        return {};
    }

    void arrange(Staging&) const {}
    void run_part(const Staging& staging, size_t part, float* const* outs) const {
        const auto [matrix, first] = columns_[part];
        const Int8Matrix& w = matrices_[matrix];
        run_matrix(w, staging, first / w.part(), outs[matrix], w.outputs);
    }
    void run_matrix(const Int8Matrix& w, const Staging& staging, int64_t part, float* out, int64_t stride) const {
        const int64_t first = part * w.part(), last = first + w.part() < w.outputs ? first + w.part() : w.outputs;
        path_->int8_rows(w, staging.view(0), first, last, out, stride);
    }
    Weights part_weights(size_t part) const {
        const auto [matrix, first] = columns_[part];
        const Int8Matrix& w = matrices_[matrix];
        if (!w.by_rows) return {nullptr, 0};
        return {reinterpret_cast<const uint8_t*>(w.codes + first * w.inputs), static_cast<size_t>((w.outputs - first) * w.inputs)};
    }
    static int32_t group_size(const Int8Matrix&) { return 0; }
    static const void* codes(const Int8Matrix& w) { return w.codes; }
    static int64_t threads_parts(const Int8Matrix& w) { return (w.outputs + w.part() - 1) / w.part(); }
    // Only matrices by rows are streamed, because a part of the rows is one range of the file.
    static Int8Matrix rows_of(const Int8Matrix& w, int64_t first, int64_t end, const uint8_t* codes) {
        return {end - first,       w.inputs, w.by_rows, reinterpret_cast<const int8_t*>(codes),
                w.scales + first, w.bias ? w.bias + first : nullptr};
    }

  private:
    struct Columns {
        size_t matrix;
        int64_t first;  // first output of a part
    };

    // Checks the shape of the codes against the attribute by_rows, because both orders have the same size.
    Status codes(const NodeInfo& info, size_t index, size_t given, Int8Matrix& w) const {
        const void* data = nullptr;
        EDGEDEC_TRY(constant(info, index, given, ElementType::int8, w.outputs * w.inputs, &data));
        w.codes = static_cast<const int8_t*>(data);
        Value value;
        EDGEDEC_TRY(info.initializer(index, value));
        const int64_t rows = w.by_rows ? w.outputs : w.inputs, columns = w.by_rows ? w.inputs : w.outputs;
        if (value.shape.dims != std::vector<int64_t>{rows, columns})
            return refuse("its input " + std::to_string(index) + " must be [" + std::to_string(rows) + ", " +
                          std::to_string(columns) + "]");
        return {};
    }

    std::vector<Columns> columns_;
};

}  // namespace

OperatorKind int8_matmul() { return kind_of<Kernel>(); }

}  // namespace edgedec
