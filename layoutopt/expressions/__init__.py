"""Integer expressions: read, evaluated, bounded, simplified, expanded, fitted to tables."""
