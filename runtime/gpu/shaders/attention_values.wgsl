// Weights and their sums with the values: `weigh` and `add` of attention_tile.hpp. A workgroup has LANES dimensions of one query
// head of one row. The values of ROWS slots are loaded before the first of them is added, so that the chain of sums does not
// wait for each of them. Workgroup memory has the weights of TILE slots.

const HIDDEN = 0xffffffffu;

var<workgroup> largest: array<f32, LANES>;
var<workgroup> weights: array<f32, TILE>;
var<workgroup> factors: array<f32, TILE>;  // weights times the scales of the values
var<workgroup> places: array<u32, TILE>;

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    start();
    let row = group.z;
    let query_head = group.x / DIM_GROUPS;
    let d = group.x % DIM_GROUPS * LANES + lane;
    let word = min(d, HEAD_DIM - 1u) / PER_WORD;
    let head_number = query_head / (HEADS / KV_HEADS);
    let first = (row * HEADS + query_head) * SLOT_STRIDE;
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
    var sum = nothing();
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
        for (var i = 0u; i < min(TILE, count - tile); i += ROWSu) {
            #each_row let place_ROW = places[i + ROWu];
            #each_row let hidden_ROW = place_ROW == HIDDEN;
            #each_row let loaded_ROW = cache[value_word(head_number, select(place_ROW, 0u, hidden_ROW), word)];
            #each_row total = select(add(total, weights[i + ROWu]), total, hidden_ROW);
            #each_row sum = select(fused(factors[i + ROWu], element(loaded_ROW, d % PER_WORD), sum), sum, hidden_ROW);
        }
        workgroupBarrier();
    }
    if (d < HEAD_DIM) { out[(row * HEADS + query_head) * HEAD_DIM + d] = div(sum, total); }
}
