"""What an evaluated launch says: its arrays, totals and problems."""
