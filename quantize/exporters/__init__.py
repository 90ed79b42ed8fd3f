"""Write checkpoints in the formats of other programs."""
