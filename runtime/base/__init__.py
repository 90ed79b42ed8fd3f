"""Parts without a neighbour among the rooms of the runtime: cores, native libraries, counts."""
