"""Deciding: matching slices with pools, the pools' lifecycle, back-off, and what a node pool is asked to be. Pure."""
