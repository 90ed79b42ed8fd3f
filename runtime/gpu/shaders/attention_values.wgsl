// Weights and their sums with the values: `weigh` and `add` of attention_tile.hpp. A workgroup has one query head of one row, and
// an invocation has the dimensions lane, lane + LANES ...

const TILE = 128u;  // slots whose weights are in workgroup memory
const HIDDEN = 0xffffffffu;

var<workgroup> largest: array<f32, LANES>;
var<workgroup> weights: array<f32, TILE>;
var<workgroup> factors: array<f32, TILE>;  // weights times the scales of the values
var<workgroup> places: array<u32, TILE>;

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    start();
    let row = group.z;
    let head_number = group.x / (HEADS / KV_HEADS);
    let first = (row * HEADS + group.x) * SLOT_STRIDE;
    let count = slot_count(row);
    var top = bitcast<f32>(0xff800000u ^ zero_word);  // -infinity
    for (var slot = lane; slot < count; slot += LANES) {
        if (visible(row, slot)) {
            let score = scores[first + slot];
            if (!is_nan(score)) { top = max(top, score); }
        }
    }
    largest[lane] = top;
    workgroupBarrier();
    for (var half = LANES / 2u; half > 0u; half /= 2u) {
        if (lane < half) { largest[lane] = max(largest[lane], largest[lane + half]); }
        workgroupBarrier();
    }
    top = largest[0];
    var total = nothing();
    var sum_ROW = nothing();  // each row
    for (var tile = 0u; tile < count; tile += TILE) {
        for (var i = lane; i < TILE; i += LANES) {
            let slot = tile + i;
            places[i] = HIDDEN;
            if (slot < count && visible(row, slot)) {
                let place = place_of(row, slot);
                let weight = exp_of(sub(scores[first + slot], top));
                places[i] = place;
                weights[i] = weight;
                factors[i] = weight;
                if (BITS == 8u) { factors[i] = mul(weight, bitcast<f32>(cache[value_scale(head_number, place)])); }
            }
        }
        workgroupBarrier();
        for (var i = 0u; i < min(TILE, count - tile); i += 1u) {
            let place = places[i];
            if (place == HIDDEN) { continue; }
            total = add(total, weights[i]);
            let d_ROW = min(lane + ROWu * LANES, HEAD_DIM - 1u);  // each row
            let value_ROW = element(cache[value_word(head_number, place, d_ROW / PER_WORD)], d_ROW % PER_WORD);  // each row
            sum_ROW = fused(factors[i], value_ROW, sum_ROW);  // each row
        }
        workgroupBarrier();
    }
    let to = (row * HEADS + group.x) * HEAD_DIM + lane;
    if (lane + ROWu * LANES < HEAD_DIM) { out[to + ROWu * LANES] = div(sum_ROW, total); }  // each row
}
