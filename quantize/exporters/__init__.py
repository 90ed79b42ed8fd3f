"""Writers of other programs' checkpoint formats."""
