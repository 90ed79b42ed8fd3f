"""The preparation of an accelerator as a target: options, board bundle, device, memories, cost and timings."""
