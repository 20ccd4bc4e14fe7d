"""Decides which pools are created, in which zone and capacity, and why other slices wait. Pure."""
