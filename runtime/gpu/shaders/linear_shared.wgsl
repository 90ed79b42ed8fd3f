// SHARERS invocations of a workgroup share the columns of an output, and leave parts of its sums to one another.

var<workgroup> parts_of_sums: array<u32, PARTS * 8u * OUTS>;

// Returns the place of a part of a sum, of an output of a tile and a row of 8.
fn part_at(part: u32, row: u32, out: u32) -> u32 { return (part * 8u + row) * OUTS + out; }
fn meet() { workgroupBarrier(); }
