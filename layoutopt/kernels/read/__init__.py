"""Kernel files of every kind, read into programs."""
