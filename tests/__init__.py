"""Tests of auditkit and its trainer."""
