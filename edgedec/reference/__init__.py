"""The definition of every operation in slow, obvious NumPy. All executors are compared with it, never with each other."""
