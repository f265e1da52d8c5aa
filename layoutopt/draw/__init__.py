"""Pictures: of a comparison, and of the banks under one warp instruction."""
