// Scores of a row's query heads and the keys that it sees: `score_strips` of attention_tile.hpp. An invocation computes the
// scores of one slot for the ROWS query heads of a workgroup, which share a key/value head.

@compute @workgroup_size(SLOTS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    start();
    let row = group.z;
    let first_head = group.x * ROWSu;
    let head_number = first_head / (HEADS / KV_HEADS);
    let first = (row * HEADS + first_head) * HEAD_DIM;
    load_queries(first, lane);
    for (var slot = group.y * SLOTS + lane; slot < slot_count(row); slot += SLOT_GROUPS * SLOTS) {
        if (!visible(row, slot)) { continue; }
        let place = place_of(row, slot);
        #each_row var sum_ROW = nothing();
        for (var word = 0u; word < DIM_WORDS; word += 1u) {
            let packed = cache[key_word(head_number, place, word)];
            for (var i = 0u; i < 32u / BITS; i += 1u) {
                let d = word * (32u / BITS) + i;
                if (d >= HEAD_DIM) { break; }
                let key = element(packed, i);
                #each_row sum_ROW = fused(query(first, ROWu * HEAD_DIM + d), key, sum_ROW);
            }
        }
        if (BITS == 8u) {
            let factor = bitcast<f32>(cache[key_scale(head_number, place)]);
            #each_row sum_ROW = mul(sum_ROW, factor);
        }
        let to = (row * HEADS + first_head) * SLOT_STRIDE + slot;
        #each_row scores[to + ROWu * SLOT_STRIDE] = score_of(mul(sum_ROW, SCALE));
    }
}
