"""Questions about layouts: compare them, check one, explain an answer, show the banks."""
