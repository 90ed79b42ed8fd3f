"""These components have no opinion of their own: queues, arithmetic and memories, and what a memory costs."""
