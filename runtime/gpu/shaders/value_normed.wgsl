// The values of a row after the RMS norm: `norm_row` of rows_tile.hpp.

const NORM_PARTS = 16u;  // partial sums

var<workgroup> norm_sums: array<f32, NORM_PARTS>;
var<private> norm_factor: f32;

// Computes the factor of the row. Every invocation of the workgroup calls this.
fn prepare(lane: u32) {
    sum_squares(lane);
    workgroupBarrier();
    var sums: array<f32, NORM_PARTS>;
    for (var i = 0u; i < NORM_PARTS; i += 1u) { sums[i] = norm_sums[i]; }
    for (var half = NORM_PARTS / 2u; half > 0u; half /= 2u) {
        for (var i = 0u; i < half; i += 1u) { sums[i] = add(sums[i], sums[i + half]); }
    }
    norm_factor = div(1.0, root(add(div(sums[0], f32(WIDTH)), EPS)));
}
fn value(i: u32) -> f32 { return mul(mul(source(i), norm_factor), gain[i]); }
