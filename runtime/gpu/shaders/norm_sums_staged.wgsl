// Sums of squares of a row, which a workgroup copies to its own memory in chunks. NORM_CHUNK is a multiple of NORM_PARTS.

var<workgroup> norm_values: array<f32, NORM_CHUNK>;

fn sum_squares(lane: u32) {
    var sum = nothing();
    for (var start = 0u; start < WIDTH; start += NORM_CHUNK) {
        let count = min(NORM_CHUNK, WIDTH - start);
        for (var i = lane; i < count; i += LANES) { norm_values[i] = source(start + i); }
        workgroupBarrier();
        if (lane < NORM_PARTS) {
            for (var i = lane; i < count; i += NORM_PARTS) { sum = fused(norm_values[i], norm_values[i], sum); }
        }
        workgroupBarrier();
    }
    if (lane < NORM_PARTS) { norm_sums[lane] = sum; }
}
