// The sum of the products of four signed bytes, for compilers without an operation for it.
fn dot4(a: u32, b: u32) -> i32 {
    let x = bitcast<vec4<i32>>(vec4(a << 24u, a << 16u, a << 8u, a)) >> vec4(24u);
    let y = bitcast<vec4<i32>>(vec4(b << 24u, b << 16u, b << 8u, b)) >> vec4(24u);
    return x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w;
}
