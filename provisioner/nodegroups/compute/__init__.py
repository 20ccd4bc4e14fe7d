"""Compute Engine: what is asked of it and how, in types of our own."""
