// The items are those that the parts of a row have found. Where a part has fewer than K, they are -inf
// without an id, which come after all others.

fn item_count() -> u32 { return PARTS * K; }
fn item_bits(row: u32, i: u32) -> u32 {
    let at = (row * PARTS * K + i) * 2u;
    return select(found[at + 1u], 0xff800000u, found[at] == NOTHING);
}
fn item_id(row: u32, i: u32) -> u32 { return found[(row * PARTS * K + i) * 2u]; }
fn keep(row: u32, part: u32, place: u32, item: Item) {
    top_ids[row * K + place] = item.id;
    top_logits[row * K + place] = item.bits;
}
