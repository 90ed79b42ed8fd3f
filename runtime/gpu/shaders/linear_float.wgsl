// Float matrices. ROWS rows at a time.
//
// The CPU target leaves these to ONNX Runtime, which has no fixed order of sums. Here a slice adds rounded products of its columns,
// each 8th block of 4 words, and the sums of the slices are added in order: a row has the same result in every pass and on
// every adapter. weights[tile][block][out] has 4 words of an output.

fn sweep_ROWS(tile: u32, first: u32, count: u32, lane: u32) {
    let out = lane % OUTS;
    #each_row let at_ROW = (first + min(ROWu, count - 1u)) * X_STRIDE + X_OFFSET;
    for (var slice = lane / OUTS; slice < SLICES; slice += SHARERS) {
        #each_row var sum_ROW = nothing();
        for (var block = slice; block < BLOCKS; block += SLICES) {
            let packed = weights[(tile * BLOCKS + block) * OUTS + out];
            for (var i = 0u; i < min(4u * PER_WORD, INPUTS - 4u * PER_WORD * block); i += 1u) {
                let weight = weight_value(packed[i / PER_WORD], i);
                let column = 4u * PER_WORD * block + i;
                #each_row sum_ROW = add(sum_ROW, mul(weight, x[at_ROW + column]));
            }
        }
        #each_row parts_of_sums[part_at(slice, ROWu, out)] = bitcast<u32>(sum_ROW);
    }
    meet();
    let row = lane / OUTS;
    if (row < min(ROWSu, count)) {
        var total = nothing();
        for (var i = 0u; i < SLICES; i += 1u) { total = add(total, bitcast<f32>(parts_of_sums[part_at(i, row, out)])); }
        finish(first + row, tile * OUTS + out, total);
    }
}
