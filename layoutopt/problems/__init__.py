"""The problem's types, what is answered, and their words."""
