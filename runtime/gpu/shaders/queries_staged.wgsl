// The queries of a workgroup, which it copies to its own memory.

var<workgroup> queries: array<f32, ROWS * HEAD_DIM>;

fn load_queries(first: u32, lane: u32) {
    for (var i = lane; i < ROWSu * HEAD_DIM; i += SLOTS) { queries[i] = q[first + i]; }
    workgroupBarrier();
}
fn query(first: u32, i: u32) -> f32 { return queries[i]; }
