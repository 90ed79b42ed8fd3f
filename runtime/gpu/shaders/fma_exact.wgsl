// a * b + c with one rounding, in integers, for adapters whose own operation rounds twice. Numbers of 64 bits are pairs (high, low).

fn wide_product(a: u32, b: u32) -> vec2<u32> {  // of 24 bits each
    let low = (a & 0xfffu) * (b & 0xfffu);
    let middle = (a >> 12u) * (b & 0xfffu) + (a & 0xfffu) * (b >> 12u);
    let high = (a >> 12u) * (b >> 12u);
    let first = low + (middle << 12u);
    let second = first + (high << 24u);
    let carry = select(0u, 1u, first < low) + select(0u, 1u, second < first);
    return vec2((middle >> 20u) + (high >> 8u) + carry, second);
}

fn wide_left(x: vec2<u32>, count: u32) -> vec2<u32> {  // count: 0 to 63
    if (count == 0u) { return x; }
    if (count > 31u) { return vec2(x.y << (count - 32u), 0u); }
    return vec2((x.x << count) | (x.y >> (32u - count)), x.y << count);
}

fn wide_jam(x: vec2<u32>, count: u32) -> vec2<u32> {  // to the right; as `jam`
    if (count == 0u) { return x; }
    if (count > 31u) { return vec2(0u, jam(x.x, count - 32u) | select(0u, 1u, x.y != 0u)); }
    let lost = select(0u, 1u, (x.y << (32u - count)) != 0u);
    return vec2(x.x >> count, (x.y >> count) | (x.x << (32u - count)) | lost);
}

fn wide_less(a: vec2<u32>, b: vec2<u32>) -> bool { return a.x < b.x || (a.x == b.x && a.y < b.y); }

fn fused(a: f32, b: f32, c: f32) -> f32 {
    let x = magnitude(a);
    let y = magnitude(b);
    let z = magnitude(c);
    let product_sign = (bitcast<u32>(a) ^ bitcast<u32>(b)) & 0x80000000u;
    if (x >= INFINITY_BITS || y >= INFINITY_BITS) {
        let opposite = z == INFINITY_BITS && (bitcast<u32>(c) & 0x80000000u) != product_sign;
        if (max(x, y) > INFINITY_BITS || min(x, y) == 0u || z > INFINITY_BITS || opposite) { return nan(); }
        return bitcast<f32>(product_sign | INFINITY_BITS);
    }
    if (z >= INFINITY_BITS) { return c; }
    if (x == 0u || y == 0u) {
        if (z != 0u) { return c; }
        return add(mul(a, b), c);
    }
    let p = parts(x);
    let q = parts(y);
    // Both summands have their highest bit at 61: value = summand * 2^(exponent - 188).
    var larger = wide_product(u32(p.x), u32(q.x));
    let short = larger.x < 0x8000u;
    larger = wide_left(larger, select(14u, 15u, short));
    var exponent = p.y + q.y - select(126, 127, short);
    var sign = product_sign;
    var smaller = vec2(0u, 0u);
    if (z != 0u) {
        let r = parts(z);
        smaller = vec2(u32(r.x) << 6u, 0u);
        let distance = exponent - r.y;
        if (distance < 0) {
            let swapped = larger;
            larger = smaller;
            smaller = wide_jam(swapped, u32(-distance));
            exponent = r.y;
            sign = bitcast<u32>(c) & 0x80000000u;
        } else {
            smaller = wide_jam(smaller, u32(distance));
        }
    }
    if (z == 0u || (bitcast<u32>(c) & 0x80000000u) == product_sign) {
        let low = larger.y + smaller.y;
        larger = vec2(larger.x + smaller.x + select(0u, 1u, low < smaller.y), low);
    } else {
        if (wide_less(larger, smaller)) {
            let swapped = larger;
            larger = smaller;
            smaller = swapped;
            sign ^= 0x80000000u;
        }
        larger = vec2(larger.x - smaller.x - select(0u, 1u, larger.y < smaller.y), larger.y - smaller.y);
        if (larger.x == 0u && larger.y == 0u) { return 0.0; }
    }
    let zeros = select(countLeadingZeros(larger.x), 32u + countLeadingZeros(larger.y), larger.x == 0u);
    larger = wide_left(larger, zeros);
    let more = select(0u, 1u, (larger.x & 1u) != 0u || larger.y != 0u);
    return rounded(sign, exponent + 2 - i32(zeros), (larger.x >> 1u) | more);
}
