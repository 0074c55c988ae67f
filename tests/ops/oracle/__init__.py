"""Independent, slow, scalar implementation of the ops, written from SPEC.md alone.

It shares no code with auditkit/numerics; section 6 (elementary functions) is tests/ops/elementary_scalar.py.
Integers are Python's, exact real numbers are fractions, every rounding is integer arithmetic, binary32 operations are
NumPy scalars. A section number in a docstring is the section of SPEC.md that the function is written from.
"""
