// The entry point of matrix products. A workgroup computes OUTS outputs for 8 rows. Invocations next to one another read the
// weights of outputs next to one another.

const MOST_ROWS = 8u;

@compute @workgroup_size(OUTS * SHARERS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    start();
    let tile = group.x + group.y * MOST_GROUPS;
    if (tile >= TILES) { return; }
    let first = group.z * MOST_ROWS;
    let count = min(MOST_ROWS, WORK_ROWS() - first);
    SWEEP
}
