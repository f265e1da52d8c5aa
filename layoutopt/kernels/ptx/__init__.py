"""PTX as text: its statements and declarations, each with its place."""
