// The cache of a state: kernels/cache.py has the layout.

// Returns the place of a slot of the sequence of `row` in the cache: block * 16 + number in the block.
fn place_of(row: u32, slot: u32) -> u32 {
    return head[TABLES + head[ROW_TABLE + row] + slot / 16u] * 16u + slot % 16u;
}
fn key_word(head_number: u32, place: u32, word: u32) -> u32 {
    return head_number * HEAD_WORDS + ((place / 16u) * DIM_WORDS + word) * 16u + place % 16u;
}
fn value_word(head_number: u32, place: u32, word: u32) -> u32 {
    return head_number * HEAD_WORDS + VALUES + place * DIM_WORDS + word;
}
fn key_scale(head_number: u32, place: u32) -> u32 { return head_number * HEAD_WORDS + KEY_SCALES + place; }
fn value_scale(head_number: u32, place: u32) -> u32 { return head_number * HEAD_WORDS + VALUE_SCALES + place; }

// Returns element `i` of a word of the cache.
fn element(word: u32, i: u32) -> f32 {
    if (BITS == 32u) { return bitcast<f32>(word); }
    if (BITS == 16u) { return from_half((word >> (16u * i)) & 0xffffu); }
    return f32(bitcast<i32>(word << (24u - 8u * i)) >> 24u);
}
