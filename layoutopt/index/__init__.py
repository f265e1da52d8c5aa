"""The code that computes an index, and its one cost."""
