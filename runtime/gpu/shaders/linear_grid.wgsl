// Matrices with evenly spaced levels (int4, and ternary planes with tied scales): `grid_sweep` of grid_tile.hpp. ROWS rows at a time.
//
// weights[tile][block][out] has 32 columns of an output: bits 0-3 of byte b of word w are the code of column 8 * w + b, bits 4-7
// that of column 8 * w + 4 + b. The highest bits of codes of 5 bits are in words after them, [tile][block / 4][out] with a
// word for each of 4 blocks: bit m of byte b belongs to column 4 * m + b. kernels/linear_grid.py has the layout of the scales.

fn sweep_ROWS(tile: u32, first: u32, count: u32, lane: u32) {
    let out = lane % OUTS;
    let slice = lane / OUTS;
    #each_row let at_ROW = (first + min(ROWu, count - 1u)) * (CODE_STRIDE / 4u);
    var total = nothing();  // sum of this output and row `slice`
    for (var base = 0u; base < GROUPS; base += SHARERS) {
        let group = base + slice;
        if (group < GROUPS) {
            #each_row var sum_ROW = 0;
            for (var block = group * (GROUP / 32u); block < min((group + 1u) * (GROUP / 32u), BLOCKS); block += 1u) {
                let packed = weights[(tile * BLOCKS + block) * OUTS + out];
                let high = high_word(tile, block, out);
                for (var j = 0u; j < FOUR; j += 1u) {
                    let a = (packed[j] & 0x0f0f0f0fu) | (((high >> (2u * j)) & 0x01010101u) << 4u);
                    let b = ((packed[j] >> 4u) & 0x0f0f0f0fu) | (((high >> (2u * j + 1u)) & 0x01010101u) << 4u);
                    #each_row let x_ROW = codes[at_ROW + 2u * block + j / 2u];
                    #each_row sum_ROW += dot4(a, x_ROW[2u * (j % 2u)]) + dot4(b, x_ROW[2u * (j % 2u) + 1u]);
                }
            }
            let scale = scale_of(tile, group, out);
            #each_row let codes_ROW = code_sum(at_ROW, group * (GROUP / 32u), GROUP / 32u);
            #each_row let scaled_ROW = mul(float_of(sum_ROW - ZERO * codes_ROW), scale);
            #each_row parts_of_sums[part_at(slice, ROWu, out)] = bitcast<u32>(scaled_ROW);
            if (OFFSET) {
                let minimum = minimum_of(tile, group, out);
                #each_row let moved_ROW = mul(float_of(codes_ROW), minimum);
                #each_row parts_of_sums[part_at(SHARERS + slice, ROWu, out)] = bitcast<u32>(moved_ROW);
            }
        }
        meet();
        if (slice < ROWSu) {
            for (var i = 0u; i < min(SHARERS, GROUPS - base); i += 1u) {
                total = add(total, bitcast<f32>(parts_of_sums[part_at(i, slice, out)]));
                if (OFFSET) { total = sub(total, bitcast<f32>(parts_of_sums[part_at(SHARERS + i, slice, out)])); }
            }
        }
        meet();
    }
    if (slice < min(ROWSu, count)) { finish(first + slice, tile * OUTS + out, mul(total, scales[first + slice])); }
}
