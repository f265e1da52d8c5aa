"""Propose, verify, keep the best: the answer to a problem, or to several tiles at once."""
