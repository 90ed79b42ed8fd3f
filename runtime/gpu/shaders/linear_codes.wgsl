// Activations that are quantized, whose layout is that of kernels/codes.py.

// Returns the sum of the codes of a row in columns [32 * first, 32 * (first + count)). `at` is the row's place in `codes`.
fn code_sum(at: u32, first: u32, count: u32) -> i32 {
    var sum = 0;
    for (var i = first; i < min(first + count, CODE_WORDS / 8u); i += 1u) {
        let place = CODE_WORDS + i;
        sum += bitcast<i32>(codes[at + place / 4u][place % 4u]);
    }
    return sum;
}

// Returns the sum of the products of 16 signed bytes.
fn dot16(a: vec4<u32>, b: vec4<u32>) -> i32 { return dot4(a.x, b.x) + dot4(a.y, b.y) + dot4(a.z, b.z) + dot4(a.w, b.w); }
