"""Benchmarks: `make bench` measures, prints a table and writes it into docs/benchmarks.md."""
