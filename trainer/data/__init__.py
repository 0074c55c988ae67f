"""Corpora of any size: several sources, read and tokenised as streams by several processes, in one declared order."""
