"""This package simulates the accelerator, its memory and whole boards, and verifies the RTL."""
