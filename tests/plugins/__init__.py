"""Pytest plugins of this test suite."""
