"""Recording what a program launches: a library in its process, no counters and no privileges."""
