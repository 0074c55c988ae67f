"""The specification as code: every operation that decides a bit of a training step, in NumPy. SPEC.md has the words."""
