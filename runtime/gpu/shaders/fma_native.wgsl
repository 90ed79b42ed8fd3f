// a * b + c with one rounding, on adapters whose own operation rounds once.
fn fused(a: f32, b: f32, c: f32) -> f32 { return sealed(fma(a, b, c)); }
fn fused_usual(a: f32, b: f32, c: f32) -> f32 { return fused(a, b, c); }
