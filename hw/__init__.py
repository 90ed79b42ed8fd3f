"""This package holds the accelerator: its components by data path, its compiler and its estimates."""
