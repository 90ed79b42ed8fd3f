// The items are the first SIZE logits of a row; the parts' results go to `found`.

fn item_count() -> u32 { return SIZE; }
fn item_bits(row: u32, i: u32) -> u32 { return logits[row * VOCAB + i]; }
fn item_id(row: u32, i: u32) -> u32 { return i; }
fn keep(row: u32, part: u32, place: u32, item: Item) {
    let to = ((row * PARTS + part) * K + place) * 2u;
    found[to] = item.id;
    found[to + 1u] = item.bits;
}
