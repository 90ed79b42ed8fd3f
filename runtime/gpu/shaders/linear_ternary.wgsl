// The codes of ternary planes.

// Returns the codes, trit + 1, of 16 columns of an output, four in a word.
fn codes_of(word: u32) -> vec4<u32> { return (vec4(word) >> vec4(0u, 2u, 4u, 6u)) & vec4(0x03030303u); }
