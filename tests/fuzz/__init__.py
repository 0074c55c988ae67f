"""Fuzzers of every parser: hostile bytes are refused with a message, or parsed into what prints the same bytes."""
