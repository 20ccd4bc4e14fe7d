"""Keeps state between decisions, and updates the state with the responses of GKE. Pure."""
