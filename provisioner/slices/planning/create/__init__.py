"""Decides which node pools are created. Pure."""
