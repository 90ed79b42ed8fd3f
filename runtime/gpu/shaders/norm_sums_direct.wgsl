// Sums of squares of a row, for software drivers, whose memory is that of the CPU.

fn sum_squares(lane: u32) {
    for (var part = lane; part < NORM_PARTS; part += LANES) {
        var sum = nothing();
        for (var i = part; i < WIDTH; i += NORM_PARTS) {
            let x = source(i);
            sum = fused(x, x, sum);
        }
        norm_sums[part] = sum;
    }
}
