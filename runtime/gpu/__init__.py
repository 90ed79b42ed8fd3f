"""The project's own kernels on GPUs, written in WGSL: the same shaders run on wgpu and in a browser."""
