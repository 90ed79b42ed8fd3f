// Rows of the embedding, or of the pass's own embeddings for negative ids.

var<private> row_id: i32;

fn select_source(row: u32, head_number: u32) { row_id = bitcast<i32>(head[ROW_ID + row]); }

// Returns the word that holds column i, of 32 / BITS columns.
fn table_word(i: u32) -> u32 {
    let row = u32(row_id);
    let word = i / (32u / BITS);
    if (!TILED) { return table[row * ROW_WORDS + word]; }
    // The layout of linear_int8.wgsl: blocks of 4 words.
    return table[((row / OUTS * BLOCKS + word / 4u) * OUTS + row % OUTS) * 4u + word % 4u];
}

fn source(i: u32) -> f32 {
    var result = 0.0;
    if (row_id < 0) {
        result = embeds[u32(-row_id - 1) * WIDTH + i];
    } else {
        result = table_value(table_word(i), i);
    }
    if (SCALE == 1.0) { return result; }
    return mul(result, SCALE);
}
