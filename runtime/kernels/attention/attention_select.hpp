// Selection of the keys that a query attends to. edgedec/reference/float_profile/selection.py defines it.
//
// A label is written with its key and is a function of the stored key alone: for each channel of the head's list, the rounded
// quotient of the key's element and the channel's step, 8 or 4 bits. A query scores each key that it sees by
//   score = 0;  for each channel, in order:  score += (query[channel] * step) * code
// where every product and sum is rounded. With `kept`, a label also has a byte for the importance of its key, whatever the query:
//   importance = offset;  for each dimension, in order:  importance += weight * (element * element)
// rounded to a code of 8 bits. The `kept` keys of the largest codes are chosen first, and the others by their scores. Labels lie
// as [block][byte][16], so that 16 neighbouring keys are scored together (score_blocks in label_tile.hpp). The choice is plain C++. The chosen keys and values are then copied to a small cache of
// one sequence, over which the path's own attention runs. So all bits are those of attention over these keys alone. If keys are
// stored as products with a few directions, before their rotation, the chosen ones are rebuilt and rotated meanwhile, and the
// label of a key is that of the rebuilt and rotated one. The order of sums is fixed: number[r] = sum over the dimensions of
// key * direction, element[d] = sum over the numbers of number * direction, each product and each sum rounded.
#pragma once

#include <vector>

#include "attention/attention.hpp"

namespace edgedec {

// Returns the place of a byte of a slot's label.
EDGEDEC_INLINE uint8_t* label_at(const KvLayout& layout, uint8_t* cache, int64_t head, int64_t slot, int64_t byte) {
    return cache + layout.labels(head) + (slot / kKeyBlock * layout.label_bytes + byte) * kKeyBlock + slot % kKeyBlock;
}

// Returns the numbers of a basis [kv_heads][rank][head_dim] in the order [kv_heads][head_dim][rank].
std::vector<float> columns_of(const KvLayout& layout, const float* directions);

// Stores the keys of the new rows of a head as numbers of a basis, or their values in a file, or both.
void append_elsewhere(const Path& path, const AttentionRows& rows, int64_t head);

// Writes the labels of the new rows of a head, whose keys are stored.
void append_labels(const Path& path, const AttentionRows& rows, int64_t head);

// Computes query rows [first, first + count) of a key/value head; `segment` is that of the first row.
void attend_selected(const Path& path, const AttentionRows& rows, int64_t head, int64_t first, int64_t count, int64_t segment);

}  // namespace edgedec
