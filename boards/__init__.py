"""One frozen data file per board, and the build flow for its vendor."""
