"""The specification as code: every operation that decides a bit of a training step, in NumPy. SPEC.md says the same in words."""
