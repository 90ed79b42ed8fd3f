// Rows of sums of two buffers.

var<private> source_start: u32;
var<private> up_start: u32;

fn select_source(row: u32, head_number: u32) {
    source_start = row * X_STRIDE + X_OFFSET;
    up_start = row * UP_STRIDE + UP_OFFSET;
}
fn source(i: u32) -> f32 { return add(x[source_start + i], up[up_start + i]); }
