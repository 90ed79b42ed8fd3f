// The highest bits of codes of 5 bits, whose layout linear_grid.wgsl describes. A word has those of 32 columns.
fn high_word(tile: u32, block: u32, out: u32) -> u32 {
    if (CODE_BITS == 4u) { return 0u; }
    let place = TILES * BLOCKS * OUTS + (tile * ((BLOCKS + 3u) / 4u) + block / 4u) * OUTS + out;
    return weights[place][block % 4u];
}
