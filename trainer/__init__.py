"""Train a model under the auditkit contract and publish the run; no arithmetic of its own that could change a bit."""
