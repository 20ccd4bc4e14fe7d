"""Decides which node pools are deleted, and finds those that fail. Pure."""
