"""A system surrounds the accelerator where there is no processor: it has a serial host link and a memory."""
