// An invocation computes an output alone, one row after another. It keeps the parts of its sum to itself.

var<private> parts_of_sums: array<u32, PARTS>;

fn part_at(part: u32, row: u32, out: u32) -> u32 { return part; }
fn meet() {}
