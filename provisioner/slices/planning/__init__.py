"""Decides from a snapshot and the memory: matches slices with pools, and plans creates, deletes and back-off. Pure."""
