"""Keeps state between decisions, and updates the state with the supplier's responses. Pure."""
