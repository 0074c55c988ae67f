"""The model and THE training step: one definition, used by the trainer and by the replayer."""
