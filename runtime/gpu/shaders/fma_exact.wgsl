// a * b + c with one rounding, in sums and products of floats, for adapters whose own operation rounds twice.
//
// A product and each sum leave an exact rest, and the sum of the rests is rounded to odd, which keeps the last rounding right.
// Source: Boldo and Melquiond, Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd, IEEE
// Transactions on Computers 57 (2008).

const ONE = 0x3f800000;  // the bits of 1.0
const STEP = 0x800000;   // one of the exponent, among the bits of a float
const FAR = 70;          // bits of distance at which only the sign of the smaller summand counts

struct Exact {  // high + low, where high is the float next to the sum
    high: f32,
    low: f32,
}

fn exact_sum(a: f32, b: f32) -> Exact {
    let high = add(a, b);
    let other = sub(high, a);
    return Exact(high, add(sub(a, sub(high, other)), sub(b, other)));
}

// Returns a * b. Source: Dekker, A floating-point technique for extending the available precision, 1971.
fn exact_product(a: f32, b: f32) -> Exact {
    let high = mul(a, b);
    let a_high = bitcast<f32>(bitcast<u32>(a) & 0xfffff000u);
    let b_high = bitcast<f32>(bitcast<u32>(b) & 0xfffff000u);
    let a_low = sub(a, a_high);
    let b_low = sub(b, b_high);
    let rest = sub(sub(sub(high, mul(a_high, b_high)), mul(a_low, b_high)), mul(a_high, b_low));
    return Exact(high, sub(mul(a_low, b_low), rest));
}

// Returns a + b, or of the two floats beside an inexact sum the one with an odd significand.
fn odd_sum(a: f32, b: f32) -> f32 {
    let sum = exact_sum(a, b);
    let bits = bitcast<i32>(sum.high);
    let toward = select(-1, 1, (bitcast<i32>(sum.low) ^ bits) >= 0);
    return bitcast<f32>(select(bits + toward, bits, sum.low == 0.0 || (bits & 1) != 0));
}

// Returns product + c as a float, and a number with the sign of the rest.
fn rounded_sum(product: Exact, c: f32) -> Exact {
    let first = exact_sum(c, product.low);
    let second = exact_sum(product.high, first.high);
    let rest = odd_sum(second.low, first.low);
    let high = add(second.high, rest);
    return Exact(high, sub(rest, sub(high, second.high)));
}

// Returns a * b + c where no operand is above 2^60, and all bits of the product on which the sum depends are above 2^-120.
fn fused_usual(a: f32, b: f32, c: f32) -> f32 { return rounded_sum(exact_product(a, b), c).high; }

struct Normal {  // the magnitude significand * 2^(exponent - 127), where the significand is in [1, 2)
    significand: f32,
    exponent: i32,
}

fn normal(bits: u32) -> Normal {
    let tiny = bits < u32(STEP);
    let used = select(i32(bits), bitcast<i32>(f32(i32(bits))), tiny);
    return Normal(bitcast<f32>((used & (STEP - 1)) | ONE), (used >> 23u) - select(0, 149, tiny));
}

// Returns the bits of a subnormal number, 0 or the smallest normal one: |x| * 2^exponent, where |x|'s own exponent and this one
// add up to `power` < 1.
fn subnormal(x: Exact, power: i32) -> u32 {
    let bits = bitcast<i32>(x.high);
    let toward = select(select(-1, 1, (bitcast<i32>(x.low) ^ bits) >= 0), 0, x.low == 0.0);
    let significand = u32(2 * ((bits & (STEP - 1)) | STEP) + toward);  // the lowest bit tells whether there is a rest
    let shift = u32(min(2 - power, 31));
    let kept = significand >> shift;
    let lost = significand & ((1u << shift) - 1u);
    let half = (1u << shift) >> 1u;
    return kept + select(0u, 1u, lost > half || (lost == half && (kept & 1u) != 0u));
}

// The significands are scaled to [1, 2), so that nothing overflows or gets subnormal on the way.
fn fused(a: f32, b: f32, c: f32) -> f32 {
    let x = magnitude(a);
    let y = magnitude(b);
    let z = magnitude(c);
    let p = normal(x);
    let q = normal(y);
    let r = normal(z);
    let sign = (bitcast<u32>(a) ^ bitcast<u32>(b)) & 0x80000000u;
    let turned = (bitcast<u32>(c) ^ sign) & 0x80000000u;  // the addend's sign where the product's is +
    let exponent = max(p.exponent + q.exponent - 254, r.exponent - 127 - FAR);
    let distance = max(-FAR, r.exponent - 127 - exponent);
    let addend = bitcast<f32>(turned | u32(bitcast<i32>(r.significand) + distance * STEP));
    let sum = rounded_sum(exact_product(p.significand, q.significand), select(addend, 0.0, z == 0u));
    let bits = bitcast<u32>(sum.high);
    let power = i32((bits >> 23u) & 0xffu) + exponent;
    var result = (bits & 0x7fffffffu) + u32(exponent * STEP);
    if (power < 1) { result = subnormal(sum, power); }
    if (power > 254) { result = INFINITY_BITS; }
    result |= sign ^ (bits & 0x80000000u);
    if (magnitude(sum.high) == 0u) { result = 0u; }
    if (min(x, y) == 0u) { result = select(bitcast<u32>(add(mul(a, b), c)), bitcast<u32>(c), z != 0u); }
    if (z >= INFINITY_BITS) { result = bitcast<u32>(c); }
    if (max(x, y) >= INFINITY_BITS) {
        let bad = max(x, y) > INFINITY_BITS || min(x, y) == 0u || z > INFINITY_BITS || (z == INFINITY_BITS && turned != 0u);
        result = select(sign | INFINITY_BITS, NAN_BITS, bad);
    }
    return bitcast<f32>(result);
}
