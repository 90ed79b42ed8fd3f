// Rows of one buffer, which may be columns of a wider matrix.

var<private> source_start: u32;

fn select_source(row: u32, head_number: u32) { source_start = row * X_STRIDE + X_OFFSET + head_number * WIDTH; }
fn source(i: u32) -> f32 { return x[source_start + i]; }
