// Rows of activation(gate) * up: `gate_rows` of rows_tile.hpp.

var<private> source_start: u32;
var<private> up_start: u32;

fn select_source(row: u32, head_number: u32) {
    source_start = row * X_STRIDE + X_OFFSET + head_number * WIDTH;
    up_start = row * UP_STRIDE + UP_OFFSET + head_number * WIDTH;
}
fn source(i: u32) -> f32 { return mul(ACTIVATION(x[source_start + i]), up[up_start + i]); }
