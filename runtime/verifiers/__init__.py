"""Verifiers: which of a tree's nodes the target accepts. One file each; its name is its command-line name."""
