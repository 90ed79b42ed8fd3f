"""Rows of activations and recurrent states: operations that no matrix takes part in."""
