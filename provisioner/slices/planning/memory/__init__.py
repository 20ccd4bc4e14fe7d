"""Keeps state between rounds, and updates it with the responses of GKE. Pure."""
