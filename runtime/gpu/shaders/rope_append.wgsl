// Rotation of queries and keys, and storage of keys and values: `rotate` and `append_rows` of append_tile.hpp. A workgroup
// has one head of one row: query heads first, then the heads of the keys, then those of the values.

var<private> source_start: u32;
var<private> table_start: u32;
var<private> kind: u32;  // 0: query, 1: key, 2: value

fn source(d: u32) -> f32 {
    switch kind {
        case 0u: { return q[source_start + d]; }
        case 1u: { return k[source_start + d]; }
        default: { return v[source_start + d]; }
    }
}

fn turned(d: u32) -> f32 {
    if (kind == 2u || d >= 2u * PAIRS) { return source(d); }
    ROTATION
}

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    start();
    let row = group.z;
    var head_number = group.x;
    if (head_number < HEADS) {
        source_start = row * Q_STRIDE + Q_OFFSET + head_number * HEAD_DIM;
    } else if (head_number < HEADS + KV_HEADS) {
        kind = 1u;
        head_number -= HEADS;
        source_start = row * K_STRIDE + K_OFFSET + head_number * HEAD_DIM;
    } else {
        kind = 2u;
        head_number -= HEADS + KV_HEADS;
        source_start = row * V_STRIDE + V_OFFSET + head_number * HEAD_DIM;
    }
    table_start = head[ROW_POSITION + row] * PAIRS;
    if (group.x < HEADS) {
        let first = (row * HEADS + head_number) * HEAD_DIM;
        for (var d = lane; d < HEAD_DIM; d += LANES) { out[first + d] = turned(d); }
        return;
    }
    let place = place_of(row, head[ROW_PAST + row] + row - head[ROW_FIRST + row]);
    let scale = scale_of(lane);
    if (BITS == 8u && lane == 0u) {
        cache[select(value_scale(head_number, place), key_scale(head_number, place), kind == 1u)] = bitcast<u32>(scale);
    }
    for (var word = lane; word < DIM_WORDS; word += LANES) {
        var packed = 0u;
        for (var i = 0u; i < 32u / BITS; i += 1u) {
            let d = word * (32u / BITS) + i;
            if (d < HEAD_DIM) { packed |= stored(turned(d), scale) << (BITS * i); }
        }
        cache[select(value_word(head_number, place, word), key_word(head_number, place, word), kind == 1u)] = packed;
    }
}
