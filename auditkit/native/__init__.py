"""Ops of the processor in C, compiled on the machine that runs them: the same bits as `auditkit.numerics`, sooner."""
