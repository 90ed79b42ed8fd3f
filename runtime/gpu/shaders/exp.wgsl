// The functions of exp_tile.hpp and rows_tile.hpp of the CPU kernels, with the same operations in the same order.

const MAGIC = 12582912.0;  // 1.5 * 2^23: adding it rounds to an integer, which is then in the low bits

struct Parts {  // parts of e^x = 2^n * (1 + r + y * r^2), where z is n + MAGIC
    r: f32,
    y: f32,
    z: f32,
}

const EXP_FACTORS = array(1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1);

// x is between -87 and 87.
fn parts_of_exp(x: f32) -> Parts {
    var factors = EXP_FACTORS;
    let z = fused_usual(x, 1.44269504088896341, MAGIC);
    let n = sub(z, MAGIC);
    // The first product is exact, as n has few bits: a rounded sum is the fused one.
    let r = fused_usual(n, 2.12194440e-4, add(mul(n, -0.693359375), x));
    var y = 1.9875691500e-4;
    for (var i = 0u; i < 5u; i += 1u) { y = fused_usual(y, r, factors[i]); }
    return Parts(r, y, z);
}

fn times_power(y: f32, z: f32) -> f32 { return bitcast<f32>(bitcast<u32>(y) + (bitcast<u32>(z) << 23u)); }

// Returns exp(x), where x is between -87 and 87.
fn exp_between(x: f32) -> f32 {
    let p = parts_of_exp(x);
    return times_power(fused_usual(p.y, mul(p.r, p.r), add(p.r, 1.0)), p.z);
}

// Returns exp(x) for x <= 0; below -87 the result is exp(-87). -inf and NaN give NaN.
fn exp_of(x: f32) -> f32 {
    if (!is_finite(x)) { return nan(); }
    return exp_between(max(x, -87.0));
}

// Returns cap * tanh(x / cap), where `twice` is 2 / cap.
fn cap_of(x: f32, cap: f32, twice: f32) -> f32 {
    if (is_nan(x)) { return nan(); }
    let p = parts_of_exp(max(-18.0, min(18.0, mul(x, twice))));
    let power = times_power(1.0, p.z);
    let e = add(mul(power, fused_usual(p.y, mul(p.r, p.r), p.r)), sub(power, 1.0));  // the product is exact
    return mul(cap, div(e, add(e, 2.0)));
}

// Returns gate / (1 + exp(-gate)).
fn silu(gate: f32) -> f32 {
    if (is_nan(gate)) { return nan(); }
    return div(gate, add(1.0, exp_between(max(-87.0, min(87.0, -gate)))));
}

fn gelu_tanh(gate: f32) -> f32 {
    let cube = mul(mul(mul(0.044715, gate), gate), gate);
    let inner = mul(0.797884583, add(gate, cube));
    return mul(mul(gate, 0.5), add(1.0, cap_of(inner, 1.0, 2.0)));
}

fn relu2(gate: f32) -> f32 {
    if (is_nan(gate)) { return nan(); }
    let positive = max(0.0, gate);
    return mul(positive, positive);
}
