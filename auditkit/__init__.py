"""Verify any step of a published language-model training run, bit for bit."""
