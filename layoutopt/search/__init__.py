"""Which questions the model is asked, in which order, and what answers them faster."""
