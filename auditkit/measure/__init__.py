"""Measuring: what a step takes on this machine, where its time goes, and how far that is from the hardware's floor."""
