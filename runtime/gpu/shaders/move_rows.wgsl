// Copies slots of a state's cache, one after another: `move_rows` and `copy_block` of the CPU kernels' attention.cpp. An invocation
// has the same word of every slot, so it needs no other one's results.

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    start();
    for (var i = 0u; i < moves[0]; i += 1u) {
        let source = moves[1u + 2u * i];
        let to = moves[2u + 2u * i];
        for (var word = lane; word < DIM_WORDS; word += 64u) {
            cache[key_word(group.x, to, word)] = cache[key_word(group.x, source, word)];
            cache[value_word(group.x, to, word)] = cache[value_word(group.x, source, word)];
        }
        if (BITS == 8u && lane == 0u) {
            cache[key_scale(group.x, to)] = cache[key_scale(group.x, source)];
            cache[value_scale(group.x, to)] = cache[value_scale(group.x, source)];
        }
    }
}
