// The values of a row after the RMS norm: `norm_row` of rows_tile.hpp.

const NORM_PARTS = 16u;     // partial sums
const NORM_CHUNK = 2048u;  // values that are copied to workgroup memory at a time, a multiple of NORM_PARTS

var<workgroup> norm_values: array<f32, NORM_CHUNK>;
var<workgroup> norm_sums: array<f32, NORM_PARTS>;
var<private> norm_factor: f32;

// Computes the factor of the row. Every invocation of the workgroup calls this.
fn prepare(lane: u32) {
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
    workgroupBarrier();
    for (var half = NORM_PARTS / 2u; half > 0u; half /= 2u) {
        if (lane < half) { norm_sums[lane] = add(norm_sums[lane], norm_sums[lane + half]); }
        workgroupBarrier();
    }
    norm_factor = div(1.0, root(add(div(norm_sums[0], f32(WIDTH)), EPS)));
}
fn value(i: u32) -> f32 { return mul(mul(source(i), norm_factor), gain[i]); }
