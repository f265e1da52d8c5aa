"""Layouts as code, one module per language."""
