// Quantization of a row to int8 by a workgroup: `quantize_token` of ternary_tile.hpp.

const ROUND = 12582912.0;  // 1.5 * 2^23: adding it leaves no bit for a fraction

var<workgroup> largest: array<u32, LANES>;

// Returns the largest of the numbers that the invocations have. Every invocation of the workgroup calls this.
fn largest_of_all(lane: u32, own: u32) -> u32 {
    largest[lane] = own;
    workgroupBarrier();
    for (var half = LANES / 2u; half > 0u; half /= 2u) {
        if (lane < half) { largest[lane] = max(largest[lane], largest[lane + half]); }
        workgroupBarrier();
    }
    return largest[0];
}

// Returns the scale of a row whose largest magnitude has the bits `most`. It is NaN if the row is not finite.
fn scale_of_row(most: u32) -> f32 {
    if (most < INFINITY_BITS) { return div(bitcast<f32>(most), 127.0); }
    return nan();
}

// Returns true if a row with this scale has codes other than 0.
fn has_codes(scale: f32) -> bool { return is_finite(scale) && magnitude(scale) != 0u; }

fn code_of(value: f32, scale: f32) -> u32 {
    let quotient = max(-127.0, min(127.0, div(value, scale)));
    return bitcast<u32>(add(quotient, ROUND)) & 0xffu;
}
