// int8 products without vectors, one after another. The other paths are compared with this one and with NumPy.
#include "products/int8_tile.hpp"

namespace edgedec {
namespace {

struct Dot {
    using Act = int8_t;
    using Codes = int8_t;
    using Sums = int32_t;
    static constexpr uint32_t kOffset = 0;
    static constexpr int kRegisters = 8, kDepth = 1, kLanes = 1, kLeast = 1;
    static constexpr int64_t kStep = 1;

    static Codes codes(const int8_t* row) { return *row; }
    static Codes acts(const Act* x) { return *x; }
    static void add(Sums& sums, Codes codes, Codes acts) { sums += codes * acts; }
    static int32_t total(Sums sums) { return sums; }

    template <int V>
    static void pack(const int8_t* const* rows, Codes* to) {
        for (int i = 0; i < V; ++i) to[i] = rows[0][i];
    }
    static Codes spread(const Act* x) { return *x; }
    static void add_outputs(Sums& sums, Codes codes, Codes acts) { sums += codes * acts; }
    static Sums load(const int32_t* sums) { return *sums; }
    static void store(Sums sums, int32_t* to) { *to = sums; }
    static int64_t slot(int64_t output) { return output; }
};

}  // namespace
}  // namespace edgedec

EDGEDEC_DEFINE_INT8(scalar)
