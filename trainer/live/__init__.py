"""Publication while training: the run folder grows with the run, and is whole at every moment."""
