"""The matrix path multiplies codes by weights and drains the rows of sums."""
