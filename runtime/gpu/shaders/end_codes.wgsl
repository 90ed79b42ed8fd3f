// One workgroup quantizes a row to int8: `quantize_token` of ternary_tile.hpp. A row of codes is followed by their sums over
// each 32 columns; kernels/codes.py has the layout.

const ROUND = 12582912.0;  // 1.5 * 2^23: adding it leaves no bit for a fraction

var<workgroup> largest: array<u32, LANES>;
var<workgroup> word_sums: array<i32, LANES>;

fn code(i: u32, scale: f32) -> u32 {
    if (i >= WIDTH) { return 0u; }
    let quotient = max(-127.0, min(127.0, div(value(i), scale)));
    return bitcast<u32>(add(quotient, ROUND)) & 0xffu;
}

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    start();
    let row = group.z;
    select_source(row, 0u);
    prepare(lane);
    var most = 0u;
    for (var i = lane; i < WIDTH; i += LANES) { most = max(most, magnitude(value(i))); }
    largest[lane] = most;
    workgroupBarrier();
    for (var half = LANES / 2u; half > 0u; half /= 2u) {
        if (lane < half) { largest[lane] = max(largest[lane], largest[lane + half]); }
        workgroupBarrier();
    }
    most = largest[0];
    var scale = nan();
    if (most < INFINITY_BITS) { scale = div(bitcast<f32>(most), 127.0); }
    let used = most < INFINITY_BITS && magnitude(scale) != 0u;
    if (lane == 0u) { scales[row] = scale; }
    let first = row * CODE_STRIDE;
    // LANES is a multiple of 8, so the words of 32 columns belong to one step.
    // The loop counts words that all lanes know: browsers allow a barrier only where every invocation surely comes by.
    for (var start_word = 0u; start_word < CODE_WORDS; start_word += LANES) {
        let word = start_word + lane;
        var packed = 0u;
        if (used && word < CODE_WORDS) {
            for (var j = 0u; j < 4u; j += 1u) { packed |= code(4u * word + j, scale) << (8u * j); }
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
