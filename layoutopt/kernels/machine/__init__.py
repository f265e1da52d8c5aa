"""One launch of a program executed: values, memories, lanes, and what it costs."""
