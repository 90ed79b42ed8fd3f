// One workgroup transforms a block of columns of a row: `transform_block` of rows_tile.hpp.

var<workgroup> block_values: array<f32, WIDTH>;

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    start();
    select_source(group.z, group.x);
    let column = group.x * WIDTH;
    for (var i = lane; i < WIDTH; i += LANES) {
        block_values[i] = source(i);
        if (!INVERSE) { block_values[i] = mul(block_values[i], signs[column + i]); }
    }
    for (var distance = 1u; distance < WIDTH; distance *= 2u) {
        workgroupBarrier();
        for (var i = lane; i < WIDTH / 2u; i += LANES) {
            let first = 2u * i - (i & (distance - 1u));
            let a = block_values[first];
            let b = block_values[first + distance];
            block_values[first] = add(a, b);
            block_values[first + distance] = sub(a, b);
        }
    }
    workgroupBarrier();
    for (var i = lane; i < WIDTH; i += LANES) {
        var value = mul(block_values[i], FACTOR);
        if (INVERSE) { value = mul(value, signs[column + i]); }
        out[group.z * OUT_STRIDE + column + i] = value;
    }
}
