// One invocation writes one value of a row.

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    start();
    let i = (group.x + group.y * MOST_GROUPS) * 256u + lane;
    if (i >= WIDTH) { return; }
    select_source(group.z, 0u);
    out[group.z * OUT_STRIDE + i] = source(i);
}
