// Rotation of queries and keys, and storage of keys and values: `rotate` and `append_rows` of attention_tile.hpp. A workgroup
// has one head of one row: query heads first, then the heads of the keys, then those of the values.

const LANES = 64u;
const ROUND = 12582912.0;  // 1.5 * 2^23: adding it leaves no bit for a fraction

var<private> source_start: u32;
var<private> table_start: u32;
var<private> kind: u32;  // 0: query, 1: key, 2: value
var<workgroup> largest: array<u32, LANES>;

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

fn code(d: u32, scale: f32) -> u32 {
    let quotient = max(-127.0, min(127.0, div(turned(d), scale)));
    return bitcast<u32>(add(quotient, ROUND)) & 0xffu;
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
    var scale = 1.0;
    var used = true;
    if (BITS == 8u) {
        var most = 0u;
        for (var d = lane; d < HEAD_DIM; d += LANES) { most = max(most, magnitude(turned(d))); }
        largest[lane] = most;
        workgroupBarrier();
        for (var half = LANES / 2u; half > 0u; half /= 2u) {
            if (lane < half) { largest[lane] = max(largest[lane], largest[lane + half]); }
            workgroupBarrier();
        }
        most = largest[0];
        scale = nan();
        if (most < INFINITY_BITS) { scale = div(bitcast<f32>(most), 127.0); }
        used = most < INFINITY_BITS && magnitude(scale) != 0u;
        if (lane == 0u) {
            cache[select(value_scale(head_number, place), key_scale(head_number, place), kind == 1u)] = bitcast<u32>(scale);
        }
    }
    for (var word = lane; word < DIM_WORDS; word += LANES) {
        var packed = 0u;
        for (var i = 0u; i < 32u / BITS; i += 1u) {
            let d = word * (32u / BITS) + i;
            if (d < HEAD_DIM && used) { packed |= stored(d, scale) << (BITS * i); }
        }
        cache[select(value_word(head_number, place, word), key_word(head_number, place, word), kind == 1u)] = packed;
    }
}
