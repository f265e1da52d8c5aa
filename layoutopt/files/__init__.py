"""Problem and result files, templates, starters and the catalogue."""
