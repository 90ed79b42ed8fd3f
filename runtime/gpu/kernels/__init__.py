"""Builders of the GPU kernels. Each returns a frozen ``Kernel`` whose shapes are constants of its source."""
