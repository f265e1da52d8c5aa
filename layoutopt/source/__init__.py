"""CUDA sources: what they say of shared arrays, and the same with the arrays laid out otherwise."""
