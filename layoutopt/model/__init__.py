"""The CP-SAT model: proposes layouts and proves bounds. It never imports the conflict engine."""
