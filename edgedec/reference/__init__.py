"""The definition of every operation: slow, obvious NumPy. All executors are compared with this, never with each other."""
