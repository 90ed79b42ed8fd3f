// Int8 matrices with one scale for an output: `finish` of int8_tile.hpp. ROWS rows at a time.
//
// weights[tile][block][out] has 16 columns of an output, four in a word. weight_scales[tile][out].

fn sweep_ROWS(tile: u32, first: u32, count: u32, lane: u32) {
    let out = lane % OUTS;
    let slice = lane / OUTS;
    #each_row let at_ROW = (first + min(ROWu, count - 1u)) * (CODE_STRIDE / 4u);
    #each_row var sum_ROW = 0;
    for (var block = slice; block < BLOCKS; block += SHARERS) {
        let packed = weights[(tile * BLOCKS + block) * OUTS + out];
        #each_row sum_ROW += dot16(packed, codes[at_ROW + block]);
    }
    #each_row parts_of_sums[part_at(slice, ROWu, out)] = bitcast<u32>(sum_ROW);
    meet();
    if (slice < min(ROWSu, count)) {
        var exact = 0;
        for (var i = 0u; i < SHARERS; i += 1u) { exact += bitcast<i32>(parts_of_sums[part_at(i, slice, out)]); }
        let scaled = mul(mul(float_of(exact), scales[first + slice]), weight_scales[tile * OUTS + out]);
        finish(first + slice, tile * OUTS + out, scaled);
    }
}
