"""Problems: the types, the file, its lowering to what the hardware sees, and the catalogue."""
