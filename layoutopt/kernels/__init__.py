"""Compiled kernels: one launch evaluated on the CPU, for what it does to shared memory."""
