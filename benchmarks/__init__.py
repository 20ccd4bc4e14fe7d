"""Measurements, most of them on the real control plane with a simulated GKE: `make bench`. They are no tests."""
