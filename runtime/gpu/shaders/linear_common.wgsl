// Common parts of all matrix products.

const MOST_ROWS = 8u;

var<workgroup> partial: array<u32, PARTIALS>;
