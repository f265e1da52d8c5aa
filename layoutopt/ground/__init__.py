"""What every room stands on and what knows nothing of GPUs: the clock, text, JSON, temporary files."""
