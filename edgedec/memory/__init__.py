"""Memory: what is measured, what bounds it, and when the system is short of it."""
