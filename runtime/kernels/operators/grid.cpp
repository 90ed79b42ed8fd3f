// The operator edgedec::GridMatMul, the products of one activation and several matrices with evenly spaced levels
// (q, k and v; gate and up).
//
// Inputs: x float32 [..., columns], then for each matrix its bytes in the layout of grid.hpp (uint8) and, if it has one, its
// bias (float32 [rows]); all except x are initializers. Attributes: columns (int), and one int per matrix in rows, bits, forms,
// group_sizes and biases (0 or 1). Outputs: float32 [..., rows], one per matrix. x is quantized once, per token.
#include <string>
#include <vector>

#include "products/grid.hpp"
#include "operators/products.hpp"

namespace edgedec {
namespace {

class Kernel final : public Products<Kernel, Grid> {
  public:
    static constexpr const char* kKind = "GridMatMul";

    Status create(const NodeInfo& info) override {
        EDGEDEC_TRY(named(info));
        const char* message = nullptr;
        path_ = chosen_path(&message);
        if (!path_) return refuse(message);

        std::vector<int64_t> outputs, bits, forms, groups, biases;
        EDGEDEC_TRY(info.integer("columns", &inputs_));
        EDGEDEC_TRY(info.list("rows", outputs));
        EDGEDEC_TRY(info.list("bits", bits));
        EDGEDEC_TRY(info.list("forms", forms));
        EDGEDEC_TRY(info.list("group_sizes", groups));
        EDGEDEC_TRY(info.list("biases", biases));
        size_t given = 0, results = 0, next = 1;
        EDGEDEC_TRY(info.counts(&given, &results));
        const size_t count = outputs.size();
        if (!count || count > kMostMatrices || bits.size() != count || forms.size() != count || groups.size() != count ||
            biases.size() != count || results != count)
            return refuse("rows, bits, forms, group_sizes and biases need one entry per output, 1 to 16");
        for (size_t i = 0; i < count; ++i) {
            for (int64_t* value : {&bits[i], &forms[i], &groups[i]})
                if (*value < 0 || *value > 128) *value = -1;  // not valid in any of them
            Grid w{outputs[i], inputs_, static_cast<int32_t>(bits[i]), static_cast<int32_t>(forms[i]),
                   static_cast<int32_t>(groups[i]), nullptr, nullptr};
            if (w.problem()) return refuse(w.problem());
            const void* data = nullptr;
            EDGEDEC_TRY(constant(info, next++, given, ElementType::uint8, w.bytes(), &data));
            w.data = static_cast<const uint8_t*>(data);
            if (biases[i]) {
                EDGEDEC_TRY(constant(info, next++, given, ElementType::float32, outputs[i], &data));
                w.bias = static_cast<const float*>(data);
            }
            parts_ += static_cast<size_t>(w.tiles());
            bytes_ += w.bytes();
            matrices_.push_back(w);
        }
        if (next != given) return refuse("has more inputs than its attributes say");
        find_streams();
        return {};
    }

    void arrange(Staging& staging) const { staging.arrange_for_grid(*path_); }
    void run_part(const Staging& staging, size_t part, float* const* outs) const {
        run_tile(part, [&](size_t i, const Grid& w, int64_t tile) { run_matrix(w, staging, tile, outs[i], w.outputs); });
    }
    void run_matrix(const Grid& w, const Staging& staging, int64_t tile, float* out, int64_t stride) const {
        path_->grid(w, staging.view(w.group_size), tile, out, stride);
    }
    Weights part_weights(size_t part) const {
        return run_tile(part, [](size_t, const Grid& w, int64_t tile) {
            const int64_t first = w.bytes() / w.tiles() * tile;
            return Weights{w.data + first, static_cast<size_t>(w.bytes() - first)};
        });
    }
    static int32_t group_size(const Grid& w) { return w.group_size; }
    static const void* codes(const Grid& w) { return w.data; }
    static int64_t threads_parts(const Grid& w) { return w.tiles(); }
    // `first` is the first row of a tile.
    static Grid rows_of(const Grid& w, int64_t first, int64_t end, const uint8_t* codes) {
        return {end - first, w.inputs, w.bits, w.form, w.group_size, codes, w.bias ? w.bias + first : nullptr};
    }
};

}  // namespace

OperatorKind grid_matmul() { return kind_of<Kernel>(); }

}  // namespace edgedec
