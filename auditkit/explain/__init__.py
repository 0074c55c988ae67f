"""What lies behind a mismatch: traces of a step, the first quantity that departs, and causes confirmed by replaying."""
