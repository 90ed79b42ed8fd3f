// Conversion of float16, as in half.hpp of the CPU kernels.

fn from_half(half: u32) -> f32 {
    let sign = (half & 0x8000u) << 16u;
    let rest = half & 0x7fffu;
    var bits = (rest << 13u) + 0x38000000u;
    if (rest >= 0x7c00u) { bits = INFINITY_BITS | (rest << 13u); }
    if (rest < 0x400u) { bits = bitcast<u32>(f32(rest) * 5.9604644775390625e-8); }  // 2^-24
    return bitcast<f32>(sign | bits);
}

// Returns the float16 next to x, in the lower bits; numbers beyond 65504 become 65504, as the CPU kernels store them.
fn to_half(x: f32) -> u32 {
    let sign = (bitcast<u32>(x) >> 16u) & 0x8000u;
    let bits = magnitude(x);
    if (bits > INFINITY_BITS) { return sign | 0x7e00u; }
    if (bits >= 0x477fe000u) { return sign | 0x7bffu; }
    if (bits < 0x38800000u) {  // the result is subnormal: its unit is 2^-24
        if (bits < 0x33000000u) { return sign; }
        let significand = (bits & 0x7fffffu) | 0x800000u;
        let shift = 126u - (bits >> 23u);
        let kept = significand >> shift;
        let lost = significand & ((1u << shift) - 1u);
        let middle = 1u << (shift - 1u);
        return sign | (kept + select(0u, 1u, lost > middle || (lost == middle && (kept & 1u) != 0u)));
    }
    return sign | ((bits - 0x38000000u + 0xfffu + ((bits >> 13u) & 1u)) >> 13u);
}
