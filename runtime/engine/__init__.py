"""The engine: many texts are written at once, and their passes are submitted together."""
