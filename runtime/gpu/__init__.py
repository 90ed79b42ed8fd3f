"""The target ``gpu``: a model as one flat program of WGSL compute kernels, which runs natively and in a browser."""
