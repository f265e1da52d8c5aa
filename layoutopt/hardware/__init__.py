"""GPUs as data: instructions, banks and phases, occupancy, counters; and the GPU of this machine."""
