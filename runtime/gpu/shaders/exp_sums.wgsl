// Sums of the weights of a row's logits, as sampling/log_sum.py defines them: a workgroup adds those of its part. The order
// does not matter, because weights are integers of 64 bits, here (lower word, upper word). Sums of a row with NaN are not
// used, because its largest logit is NaN.

var<workgroup> sums: array<vec2<u32>, LANES>;

fn plus(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = a.x + b.x;
    return vec2(low, a.y + b.y + select(0u, 1u, low < a.x));
}

// Returns the upper word of a product.
fn upper(a: u32, b: u32) -> u32 {
    let low_a = a & 0xffffu;
    let low_b = b & 0xffffu;
    let middle = (a >> 16u) * low_b + ((low_a * low_b) >> 16u);
    let other = low_a * (b >> 16u) + (middle & 0xffffu);
    return (a >> 16u) * (b >> 16u) + (middle >> 16u) + (other >> 16u);
}

// Returns a - b - difference, where `difference` is a - b with one rounding.
fn error_of(a: f32, b: f32, difference: f32) -> f32 {
    let taken = sub(difference, a);
    return sub(sub(a, sub(difference, taken)), add(b, taken));
}

// Returns the weight of a logit; `most` is half of the largest.
fn weight_of(logit: f32, most: f32) -> vec2<u32> {
    if (!is_finite(logit)) { return vec2(0u, 0u); }
    let half = mul(logit, 0.5);
    let near = sub(most, half);
    if (!(near < MOST_HALF)) { return vec2(0u, 0u); }
    let scale = 268435456.0;  // 2^28
    let distance = u32(mul(near, scale)) + u32(i32(mul(error_of(most, half, near), scale)));
    let low = distance * LOG2_E;
    let high = upper(distance, LOG2_E);
    let fraction = (high << 6u) | (low >> 26u);
    var terms = TERMS;
    var power = FIRST_TERM;
    for (var i = 0u; i < TERM_COUNT; i += 1u) { power = terms[i] - upper(power, fraction); }
    let octaves = high >> 26u;
    let shifted = vec2(power << UNIT_SHIFT, power >> (32u - UNIT_SHIFT));
    if (octaves == 0u) { return shifted; }
    if (octaves > 31u) { return vec2(shifted.y >> (octaves - 32u), 0u); }
    return vec2((shifted.x >> octaves) | (shifted.y << (32u - octaves)), shifted.y >> octaves);
}

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    start();
    let most = mul(top_logits[group.z * K], 0.5);
    var sum = vec2(0u, 0u);
    for (var i = group.x * PART + lane; i < min((group.x + 1u) * PART, SIZE); i += LANES) {
        sum = plus(sum, weight_of(logits[group.z * VOCAB + i], most));
    }
    sums[lane] = sum;
    workgroupBarrier();
    for (var half = LANES / 2u; half > 0u; half /= 2u) {
        if (lane < half) { sums[lane] = plus(sums[lane], sums[lane + half]); }
        workgroupBarrier();
    }
    if (lane == 0u) {
        let at = (group.z * PARTS + group.x) * 2u;
        top_sums[at] = sums[0].x;
        top_sums[at + 1u] = sums[0].y;
    }
}
