// Int8 matrices with one scale for an output: `finish` of int8_tile.hpp. ROWS rows at a time.
//
// weights[tile][block][out] has 16 columns of an output, four in a word. weight_scales[tile][out].

fn sweep_ROWS(tile: u32, first: u32, count: u32, lane: u32) {
    let out = lane % OUTS;
    let slice = lane / OUTS;
    let at_ROW = (first + min(ROWu, count - 1u)) * (CODE_STRIDE / 4u);  // each row
    var sum_ROW = 0;  // each row
    for (var block = slice; block < BLOCKS; block += SLICES) {
        let packed = weights[(tile * BLOCKS + block) * OUTS + out];
        let x_ROW = codes[at_ROW + block];  // each row
        sum_ROW += dot4(packed.x, x_ROW.x) + dot4(packed.y, x_ROW.y) + dot4(packed.z, x_ROW.z) + dot4(packed.w, x_ROW.w);  // each row
    }
    partial[(slice * 8u + ROWu) * OUTS + out] = bitcast<u32>(sum_ROW);  // each row
    workgroupBarrier();
    if (slice < min(ROWSu, count)) {
        var exact = 0;
        for (var i = 0u; i < SLICES; i += 1u) { exact += bitcast<i32>(partial[(i * 8u + slice) * OUTS + out]); }
        let scaled = mul(mul(float_of(exact), scales[first + slice]), weight_scales[tile * OUTS + out]);
        finish(first + slice, tile * OUTS + out, scaled);
    }
}
