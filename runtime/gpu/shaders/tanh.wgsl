// Returns cap * tanh(x / cap) in the steps of SoftCap of the CPU kernels.
fn capped(x: f32, cap: f32) -> f32 { return mul(cap_of(div(x, cap), 1.0, 2.0), cap); }
