// The values of a row as they are.

fn prepare(lane: u32) {}
fn value(i: u32) -> f32 { return source(i); }
