// Sizes of int8 matrices.
#include "int8.hpp"

namespace edgedec {

const char* Int8Matrix::problem() const {
    if (outputs < 1 || outputs > kMostOutputs) return "outputs must be 1 to 2^26";
    if (inputs < 1 || inputs > kMostInt8Inputs) return "inputs must be 1 to 2^17 - 1";
    return nullptr;
}

int64_t Int8Matrix::part() const {
    // By rows 96 KiB, which stay in the second-level cache for the next eight tokens. By columns a sixteenth, but not less
    // than 256: narrow strips are read in short runs.
    const int64_t wanted = by_rows ? (int64_t{96} << 10) / inputs : (outputs + 15) / 16;
    const int64_t least = by_rows ? 16 : 256, most = by_rows ? 1024 : 4096, unit = by_rows ? 16 : kPanel;
    const int64_t whole = (wanted + unit - 1) / unit * unit;
    return whole < least ? least : whole < most ? whole : most;
}

}  // namespace edgedec
