"""What other tools print, as problem data: CuTe and Triton layouts, recorded traces."""
