// One workgroup writes the values of a row of one head.

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    start();
    select_source(group.z, group.x);
    prepare(lane);
    let first = group.z * OUT_STRIDE + group.x * WIDTH;
    for (var i = lane; i < WIDTH; i += LANES) { out[first + i] = value(i); }
}
