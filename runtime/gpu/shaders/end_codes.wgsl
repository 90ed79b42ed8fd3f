// One workgroup quantizes a row to int8. A row of codes is followed by their sums over each 32 columns; kernels/codes.py has the
// layout.

var<workgroup> word_sums: array<i32, LANES>;

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    start();
    let row = group.z;
    select_source(row, 0u);
    prepare(lane);
    var most = 0u;
    for (var i = lane; i < WIDTH; i += LANES) { most = max(most, magnitude(value(i))); }
    let scale = scale_of_row(largest_of_all(lane, most));
    if (lane == 0u) { scales[row] = scale; }
    let first = row * CODE_STRIDE;
    // LANES is a multiple of 8, so the words of 32 columns belong to one step.
    // The loop counts words that all lanes know: browsers allow a barrier only where every invocation surely comes by.
    for (var start_word = 0u; start_word < CODE_WORDS; start_word += LANES) {
        let word = start_word + lane;
        var packed = 0u;
        if (has_codes(scale)) {
            for (var i = 4u * word; i < min(4u * word + 4u, WIDTH); i += 1u) {
                packed |= code_of(value(i), scale) << (8u * (i % 4u));
            }
        }
        word_sums[lane] = dot4(packed, 0x01010101u);
        workgroupBarrier();
        if (word < CODE_WORDS) {
            codes[first + word] = packed;
            if ((lane & 7u) == 0u) {
                var sum = 0;
                for (var i = 0u; i < 8u; i += 1u) { sum += word_sums[lane + i]; }
                codes[first + CODE_WORDS + word / 8u] = bitcast<u32>(sum);
            }
        }
        workgroupBarrier();
    }
}
