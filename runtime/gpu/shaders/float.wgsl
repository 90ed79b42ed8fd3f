// Float32 arithmetic with one rounding to nearest, ties to even, in each operation, whatever the compiler and the hardware do.
//
// Sums, differences and products are rounded correctly everywhere, but a compiler may join two of them or change their order.
// Each result passes through `sealed`, which it cannot see through. Quotients and roots begin with the hardware's guess, which
// an exact remainder corrects.

const INFINITY_BITS = 0x7f800000u;
const NAN_BITS = 0x7fc00000u;

fn sealed(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) ^ zero_word); }
// The beginning of a sum. A compiler that knows that it is 0 may leave out the first addition, which turns -0 into 0.
fn nothing() -> f32 { return bitcast<f32>(zero_word); }

fn add(a: f32, b: f32) -> f32 { return sealed(a + b); }
fn sub(a: f32, b: f32) -> f32 { return sealed(a - b); }
fn mul(a: f32, b: f32) -> f32 { return sealed(a * b); }

fn magnitude(x: f32) -> u32 { return bitcast<u32>(x) & 0x7fffffffu; }
fn is_nan(x: f32) -> bool { return magnitude(x) > INFINITY_BITS; }
fn is_finite(x: f32) -> bool { return magnitude(x) < INFINITY_BITS; }
fn nan() -> f32 { return bitcast<f32>(NAN_BITS ^ zero_word); }

// Returns the float next to an integer. Both parts are exact, and their sum is rounded once.
fn float_of(value: i32) -> f32 { return add(sealed(f32(value >> 12u) * 4096.0), f32(value & 0xfff)); }

// Returns significand and exponent of a finite number that is not 0: |x| = significand * 2^(exponent - 150), where the
// significand has 24 bits.
fn parts(bits: u32) -> vec2<i32> {
    let exponent = i32((bits >> 23u) & 0xffu);
    let fraction = bits & 0x7fffffu;
    if (exponent != 0) { return vec2(i32(fraction | 0x800000u), exponent); }
    let shift = i32(countLeadingZeros(fraction)) - 8;
    return vec2(i32(fraction << u32(shift)), 1 - shift);
}

// Returns x >> count, where the lowest bit of the result is set if bits were lost.
fn jam(x: u32, count: u32) -> u32 {
    if (count > 31u) { return select(0u, 1u, x != 0u); }
    return (x >> count) | select(0u, 1u, (x & ((1u << count) - 1u)) != 0u);
}

// Returns the float next to significand * 2^(exponent - 157), where the significand has its highest bit at 30 and the lowest bit
// tells whether there is more after it.
fn rounded(sign: u32, exponent: i32, significand: u32) -> f32 {
    var value = significand;
    var power = exponent;
    if (power < 1) {  // a subnormal number, or 0
        value = jam(value, u32(1 - power));
        power = 1;
    }
    let lowest = value & 0x7fu;
    value = (value + 0x40u) >> 7u;
    if (lowest == 0x40u) { value &= 0xfffffffeu; }
    var bits = (u32(power - 1) << 23u) + value;
    if (power > 254 || bits > INFINITY_BITS) { bits = INFINITY_BITS; }
    return bitcast<f32>(sign | bits);
}

// Returns a / b.
fn div(a: f32, b: f32) -> f32 {
    let x = bitcast<u32>(a);
    let y = bitcast<u32>(b);
    let sign = (x ^ y) & 0x80000000u;
    let above = x & 0x7fffffffu;
    let below = y & 0x7fffffffu;
    if (above > INFINITY_BITS || below > INFINITY_BITS) { return nan(); }
    if (above == INFINITY_BITS || below == 0u) {
        if (below == INFINITY_BITS || above == 0u) { return nan(); }
        return bitcast<f32>(sign | INFINITY_BITS);
    }
    if (above == 0u || below == INFINITY_BITS) { return bitcast<f32>(sign); }
    let n = parts(above);
    let d = parts(below);
    // The quotient of the significands is in (1/2, 2). It gets 27 bits or one less.
    let shift = select(26u, 27u, n.x < d.x);
    var quotient = i32(f32(n.x) / f32(d.x) * f32(1u << shift));
    // The guess is off by at most a few hundred, so the remainder fits in 32 bits, and it is exact modulo 2^32.
    var rest = i32((u32(n.x) << shift) - u32(quotient) * u32(d.x));
    let more = i32(floor(f32(rest) / f32(d.x)));
    quotient += more;
    rest -= more * d.x;
    if (rest < 0) {
        quotient -= 1;
        rest += d.x;
    }
    if (rest >= d.x) {
        quotient += 1;
        rest -= d.x;
    }
    let value = (u32(quotient) << 4u) | select(0u, 1u, rest != 0);
    return rounded(sign, n.y - d.y + 153 - i32(shift), value);
}

// Returns the square root of x, which is not negative.
fn root(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    if ((bits & 0x7fffffffu) == 0u || bits == INFINITY_BITS) { return x; }
    if (bits > INFINITY_BITS) { return nan(); }
    let p = parts(bits);
    // x = m * 2^(2 * half), where m has 25 or 26 bits. The root of m * 2^24 has 25 bits.
    let odd = (p.y - 151) & 1;
    let m = u32(p.x) << u32(1 + odd);
    let half = (p.y - 151 - odd) / 2;
    var guess = i32(sqrt(f32(m)) * 4096.0);
    var rest = i32((m << 24u) - u32(guess) * u32(guess));  // exact modulo 2^32, as in div
    loop {
        if (rest >= 0) { break; }
        guess -= 1;
        rest += 2 * guess + 1;
    }
    loop {
        if (rest <= 2 * guess) { break; }
        rest -= 2 * guess + 1;
        guess += 1;
    }
    return rounded(0u, 139 + half, (u32(guess) << 6u) | select(0u, 1u, rest != 0));
}
