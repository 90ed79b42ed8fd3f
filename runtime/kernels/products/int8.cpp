// Sizes of int8 matrices.
#include "products/int8.hpp"

namespace edgedec {

const char* Int8Matrix::problem() const {
    if (outputs < 1 || outputs > kMostOutputs) return "outputs must be 1 to 2^26";
    if (inputs < 1 || inputs > kMostInt8Inputs) return "inputs must be 1 to 2^17 - 1";
    return nullptr;
}

int64_t Int8Matrix::part() const {
    // By rows: up to 32 parts of at least 64 KiB. By columns: up to 16 parts of at least 1024 outputs, because a strip is read
    // in runs of its width; the number is even, for two threads.
    const int64_t parts = by_rows ? 32 : outputs / 1024 / 2 * 2, unit = by_rows ? 16 : kPanel;
    const int64_t least = by_rows ? (int64_t{64} << 10) / inputs : unit;
    const int64_t wanted = outputs / (parts < 2 ? 2 : parts < 16 || by_rows ? parts : 16);
    const int64_t whole = ((wanted > least ? wanted : least) + unit - 1) / unit * unit;
    return whole > unit ? whole : unit;
}

}  // namespace edgedec
