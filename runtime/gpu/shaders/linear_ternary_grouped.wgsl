// Ternary planes with a scale for each group of columns: `sweep` of ternary_tile.hpp. ROWS rows at a time.
//
// weights[tile][plane][block][out] has 64 columns of an output: bits 2 * j and 2 * j + 1 of byte b of word w are the code, trit
// + 1, of column 16 * w + 4 * j + b. weight_scales[tile][plane][group][out].

fn sweep_ROWS(tile: u32, first: u32, count: u32, lane: u32) {
    let out = lane % OUTS;
    let slice = lane / OUTS;
    #each_row let at_ROW = (first + min(ROWu, count - 1u)) * (CODE_STRIDE / 4u);
    var total = nothing();  // sum of this output and row `slice`
    for (var plane = 0u; plane < PLANES; plane += 1u) {
        let planes = tile * PLANES + plane;
        for (var base = 0u; base < UNITS; base += SHARERS) {
            let unit = base + slice;
            if (unit < UNITS) {
                #each_row var sum_ROW = 0;
                for (var block = unit * UNIT_BLOCKS; block < min((unit + 1u) * UNIT_BLOCKS, BLOCKS); block += 1u) {
                    let packed = weights[(planes * BLOCKS + block) * OUTS + out];
                    for (var j = 0u; j < FOUR; j += 1u) {
                        let trits = codes_of(packed[j]);
                        #each_row sum_ROW += dot16(trits, codes[at_ROW + 4u * block + j]);
                        if (GROUP == 32u && j == 1u) {
                            let group = min(2u * unit, GROUPS - 1u);
                            let scale = weight_scales[(planes * GROUPS + group) * OUTS + out];
                            #each_row let scaled_ROW = mul(float_of(sum_ROW - code_sum(at_ROW, group, 1u)), scale);
                            #each_row parts_of_sums[part_at(2u * slice, ROWu, out)] = bitcast<u32>(scaled_ROW);
                            #each_row sum_ROW = 0;
                        }
                    }
                }
                let group = min(unit * UNIT_GROUPS + UNIT_GROUPS - 1u, GROUPS - 1u);
                let scale = weight_scales[(planes * GROUPS + group) * OUTS + out];
                #each_row let codes_ROW = code_sum(at_ROW, group * (GROUP / 32u), GROUP / 32u);
                #each_row let scaled_ROW = mul(float_of(sum_ROW - codes_ROW), scale);
                #each_row parts_of_sums[part_at(slice * UNIT_GROUPS + UNIT_GROUPS - 1u, ROWu, out)] = bitcast<u32>(scaled_ROW);
            }
            meet();
            if (slice < ROWSu) {
                for (var i = 0u; i < min(SHARERS * UNIT_GROUPS, GROUPS - base * UNIT_GROUPS); i += 1u) {
                    total = add(total, bitcast<f32>(parts_of_sums[part_at(i, slice, out)]));
                }
            }
            meet();
        }
    }
    if (slice < min(ROWSu, count)) { finish(first + slice, tile * OUTS + out, mul(total, scales[first + slice])); }
}
