"""Answers for people: text, tables, pictures."""
