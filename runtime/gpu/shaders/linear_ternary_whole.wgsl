// Ternary planes with one scale for an output: `sweep` of ternary_tile.hpp with group_size 0. ROWS rows at a time.
//
// The layouts are those of linear_ternary_grouped.wgsl with one group.

fn sweep_ROWS(tile: u32, first: u32, count: u32, lane: u32) {
    let out = lane % OUTS;
    let slice = lane / OUTS;
    #each_row let at_ROW = (first + min(ROWu, count - 1u)) * (CODE_STRIDE / 4u);
    var total = nothing();  // sum of this output and row `slice`
    for (var plane = 0u; plane < PLANES; plane += 1u) {
        let planes = tile * PLANES + plane;
        #each_row var sum_ROW = 0;
        for (var block = slice; block < BLOCKS; block += SHARERS) {
            let packed = weights[(planes * BLOCKS + block) * OUTS + out];
            for (var j = 0u; j < FOUR; j += 1u) {
                let trits = codes_of(packed[j]);
                #each_row sum_ROW += dot16(trits, codes[at_ROW + 4u * block + j]);
            }
            #each_row sum_ROW -= code_sum(at_ROW, 2u * block, 2u);
        }
        #each_row parts_of_sums[part_at(slice, ROWu, out)] = bitcast<u32>(sum_ROW);
        meet();
        if (slice < ROWSu) {
            var exact = 0;
            for (var i = 0u; i < SHARERS; i += 1u) { exact += bitcast<i32>(parts_of_sums[part_at(i, slice, out)]); }
            total = add(total, mul(float_of(exact), weight_scales[planes * OUTS + out]));
        }
        meet();
    }
    if (slice < min(ROWSu, count)) { finish(first + slice, tile * OUTS + out, mul(total, scales[first + slice])); }
}
