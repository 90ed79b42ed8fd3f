// Ternary planes with a scale for each group of columns: `sweep` of ternary_tile.hpp. ROWS rows at a time.
//
// weights[tile][plane][block][out] has 64 columns of an output: bits 2 * j and 2 * j + 1 of byte b of word w are the code, trit
// + 1, of column 16 * w + 4 * j + b. weight_scales[tile][plane][group][out].

fn sweep_ROWS(tile: u32, first: u32, count: u32, lane: u32) {
    let out = lane % OUTS;
    let slice = lane / OUTS;
    let at_ROW = (first + min(ROWu, count - 1u)) * (CODE_STRIDE / 4u);  // each row
    var total = nothing();  // of this output and row `slice`
    for (var plane = 0u; plane < PLANES; plane += 1u) {
        let planes = tile * PLANES + plane;
        for (var base = 0u; base < UNITS; base += SLICES) {
            let unit = base + slice;
            if (unit < UNITS) {
                var sum_ROW = 0;  // each row
                for (var block = unit * UNIT_BLOCKS; block < min((unit + 1u) * UNIT_BLOCKS, BLOCKS); block += 1u) {
                    let packed = weights[(planes * BLOCKS + block) * OUTS + out];
                    for (var j = 0u; j < FOUR; j += 1u) {
                        let word = packed[j];
                        let a = word & 0x03030303u;
                        let b = (word >> 2u) & 0x03030303u;
                        let c = (word >> 4u) & 0x03030303u;
                        let d = (word >> 6u) & 0x03030303u;
                        let x_ROW = codes[at_ROW + 4u * block + j];  // each row
                        sum_ROW += dot4(a, x_ROW.x) + dot4(b, x_ROW.y) + dot4(c, x_ROW.z) + dot4(d, x_ROW.w);  // each row
                        if (GROUP == 32u && j == 1u) {
                            let group = min(2u * unit, GROUPS - 1u);
                            let scale = weight_scales[(planes * GROUPS + group) * OUTS + out];
                            let to = 2u * slice * 8u * OUTS + out;
                            partial[to + ROWu * OUTS] = bitcast<u32>(mul(float_of(sum_ROW - code_sum(at_ROW, group, 1u)), scale));  // each row
                            sum_ROW = 0;  // each row
                        }
                    }
                }
                let group = min(unit * UNIT_GROUPS + UNIT_GROUPS - 1u, GROUPS - 1u);
                let scale = weight_scales[(planes * GROUPS + group) * OUTS + out];
                let to = (slice * UNIT_GROUPS + UNIT_GROUPS - 1u) * 8u * OUTS + out;
                partial[to + ROWu * OUTS] = bitcast<u32>(mul(float_of(sum_ROW - code_sum(at_ROW, group * (GROUP / 32u), GROUP / 32u)), scale));  // each row
            }
            workgroupBarrier();
            if (slice < ROWSu) {
                for (var i = 0u; i < min(SLICES * UNIT_GROUPS, GROUPS - base * UNIT_GROUPS); i += 1u) {
                    total = add(total, bitcast<f32>(partial[(i * 8u + slice) * OUTS + out]));
                }
            }
            workgroupBarrier();
        }
    }
    if (slice < min(ROWSu, count)) { finish(first + slice, tile * OUTS + out, mul(total, scales[first + slice])); }
}
