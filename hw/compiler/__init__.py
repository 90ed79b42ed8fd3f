"""The compiler from bundles to programs and images of the accelerator."""
