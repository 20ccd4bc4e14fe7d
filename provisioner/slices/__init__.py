"""Capacity for the slices of workloads: observe, decide, act."""
