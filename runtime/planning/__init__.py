"""Plans: the memory of a run, and the sizes that fit a budget."""
