// The operator edgedec::TernaryMatMul, the products of one activation and several ternary matrices (q, k and v;
// gate and up).
//
// Inputs: x float32 [..., columns], then for each matrix its bytes in the layout of ternary.hpp (uint8), its scale if it has no
// groups (float32 [1]), and its bias if it has one (float32 [rows]); all except x are initializers. Attributes: columns (int),
// and one int per matrix in rows, planes, group_sizes, half_scales (0 or 1) and biases (0 or 1). Outputs: float32 [..., rows],
// one per matrix. x is quantized once, per token.
#include <string>
#include <vector>

#include "operators/products.hpp"
#include "products/ternary.hpp"

namespace edgedec {
namespace {

class Kernel final : public Products<Kernel, Ternary> {
  public:
    static constexpr const char* kKind = "TernaryMatMul";

    Status create(const NodeInfo& info) override {
        EDGEDEC_TRY(named(info));
        const char* message = nullptr;
        path_ = chosen_path(&message);
        if (!path_) return refuse(message);

        std::vector<int64_t> outputs, planes, groups, halves, biases;
        EDGEDEC_TRY(info.integer("columns", &inputs_));
        EDGEDEC_TRY(info.list("rows", outputs));
        EDGEDEC_TRY(info.list("planes", planes));
        EDGEDEC_TRY(info.list("group_sizes", groups));
        EDGEDEC_TRY(info.list("half_scales", halves));
        EDGEDEC_TRY(info.list("biases", biases));
        size_t given = 0, results = 0, next = 1;
        EDGEDEC_TRY(info.counts(&given, &results));
        const size_t count = outputs.size();
        if (!count || count > kMostMatrices || planes.size() != count || groups.size() != count ||
            halves.size() != count || biases.size() != count || results != count)
            return refuse("rows, planes, group_sizes, half_scales and biases need one entry per output, 1 to 16");
        for (size_t i = 0; i < count; ++i) {
            if (planes[i] < 0 || planes[i] > 3 || groups[i] < 0 || groups[i] > 128) planes[i] = 0;
            Ternary w{outputs[i], inputs_, static_cast<int32_t>(planes[i]), static_cast<int32_t>(groups[i]),
                      nullptr,    nullptr, nullptr, halves[i] != 0};
            if (w.problem()) return refuse(w.problem());
            const void* data = nullptr;
            EDGEDEC_TRY(constant(info, next++, given, ElementType::uint8, w.bytes(), &data));
            w.codes = static_cast<const uint8_t*>(data);
            if (!w.group_size) {
                EDGEDEC_TRY(constant(info, next++, given, ElementType::float32, 1, &data));
                w.scale = static_cast<const float*>(data);
            }
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

    void arrange(Staging& staging) const { staging.arrange(*path_); }
    void run_part(const Staging& staging, size_t part, float* const* outs) const {
        run_tile(part, [&](size_t i, const Ternary& w, int64_t tile) { run_matrix(w, staging, tile, outs[i], w.outputs); });
    }
    void run_matrix(const Ternary& w, const Staging& staging, int64_t tile, float* out, int64_t stride) const {
        path_->tile(w, staging.view(w.group_size), tile, out, stride);
    }
    Weights part_weights(size_t part) const {
        return run_tile(part, [](size_t, const Ternary& w, int64_t tile) {
            const int64_t first = w.tile_bytes() * tile;
            return Weights{w.codes + first, static_cast<size_t>(w.bytes() - first)};
        });
    }
    static int32_t group_size(const Ternary& w) { return w.group_size; }
    static const void* codes(const Ternary& w) { return w.codes; }
    static int64_t threads_parts(const Ternary& w) { return w.tiles(); }
    // `first` is the first row of a tile.
    static Ternary rows_of(const Ternary& w, int64_t first, int64_t end, const uint8_t* codes) {
        return {end - first, w.inputs, w.planes, w.group_size, codes, w.scale, w.bias ? w.bias + first : nullptr,
                w.half_scales};
    }
};

}  // namespace

OperatorKind ternary_matmul() { return kind_of<Kernel>(); }

}  // namespace edgedec
