"""Measurements on the real control plane with the simulated GKE: `make bench`. Nothing here is a test."""
