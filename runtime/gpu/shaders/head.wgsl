// The header of a pass, whose layout is that of kernels/head.py.

var<private> zero_word: u32;  // 0, which no compiler knows

// Reads the header. Every entry point calls this first.
fn start() { zero_word = head[0]; }

fn row_count() -> u32 { return head[1]; }
fn result_count() -> u32 { return head[2]; }
