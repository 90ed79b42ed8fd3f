// Sizes of matrices with evenly spaced levels.
#include "products/grid.hpp"

namespace edgedec {

const char* Grid::problem() const {
    if (outputs < 1 || outputs > kMostOutputs) return "outputs must be 1 to 2^26";
    if (inputs < 1 || inputs > kMostInputs) return "inputs must be 1 to 2^20";
    if (bits != 4 && bits != 5) return "bits must be 4 or 5";
    if (form != kFloat && form != kHalf && form != kOffset) return "the form of scales must be 0, 1 or 2";
    if (group_size != 32 && group_size != 64 && group_size != 128) return "group_size must be 32, 64 or 128";
    return nullptr;
}

}  // namespace edgedec
