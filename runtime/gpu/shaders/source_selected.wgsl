// The rows whose logits are requested.

var<private> source_start: u32;

fn select_source(row: u32, head_number: u32) { source_start = head[RESULT_ROWS + row] * X_STRIDE + X_OFFSET; }
fn source(i: u32) -> f32 { return x[source_start + i]; }
