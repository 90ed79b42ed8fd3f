// The rows that a query sees: `Rows` of attention_tile.hpp.

fn visible(row: u32, slot: u32) -> bool {
    let past = head[ROW_PAST + row];
    let above = bitcast<i32>(head[ROW_POSITION + row]) - i32(WINDOW);  // positions above this are in the window
    if (slot < past) { return WINDOW == 0u || slot < SINKS || i32(slot) > above; }
    let j = slot - past;
    if (((head[MASKS + row * MASK_WORDS + j / 32u] >> (j % 32u)) & 1u) == 0u) { return false; }
    let position = head[ROW_POSITION + head[ROW_FIRST + row] + j];
    return WINDOW == 0u || position < SINKS || i32(position) > above;
}

// Returns the number of slots of the sequence of `row` in this pass. All rows of the sequence have the same.
fn slot_count(row: u32) -> u32 { return head[ROW_PAST + row] + head[ROW_COUNT + row]; }
