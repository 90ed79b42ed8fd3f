"""From bundles to what the accelerator reads."""
