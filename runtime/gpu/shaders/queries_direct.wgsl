// The queries of a workgroup, for software drivers, whose memory is that of the CPU.

fn load_queries(first: u32, lane: u32) {}
fn query(first: u32, i: u32) -> f32 { return q[first + i]; }
