"""Tests of the store against real servers on this machine."""
