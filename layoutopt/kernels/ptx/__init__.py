"""PTX as text: read, followed, and edited."""
