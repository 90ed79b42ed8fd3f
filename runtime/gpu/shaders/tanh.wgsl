// ONNX Runtime's Tanh, by which the CPU target caps logits: a quotient of polynomials in fused steps.
// Source: MlasTanhKernel of onnxruntime/core/mlas/lib/tanh.cpp.

const TANH_FACTORS = array(
    -2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08, 1.48572235717979e-05,
    6.37261928875436e-04, 4.89352455891786e-03, 1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03,
    4.89352518554385e-03);

fn tanh_of(x: f32) -> f32 {
    if (is_nan(x)) { return nan(); }
    var factors = TANH_FACTORS;
    let bounded = max(-9.0, min(9.0, x));
    let square = mul(bounded, bounded);
    var above = 0.0;
    var sum = factors[0];
    for (var i = 1u; i < 11u; i += 1u) {
        if (i == 7u) {  // the end of the numerator
            above = mul(sum, bounded);
            sum = factors[7];
        } else {
            sum = fused(sum, square, factors[i]);
        }
    }
    return div(above, sum);
}

// Returns cap * tanh(x / cap).
fn capped(x: f32, cap: f32) -> f32 { return mul(tanh_of(div(x, cap)), cap); }
