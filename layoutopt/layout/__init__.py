"""Layouts: coordinates to byte offset, as an object and as the text of a formula."""
