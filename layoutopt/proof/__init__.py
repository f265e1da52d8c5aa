"""What holds for every layout, on what it rests, and certificates that others can check."""
