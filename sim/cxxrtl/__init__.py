"""Any accelerator top as a compiled simulation with its memory beside it: hundreds of thousands of cycles a second."""
