"""Specifies the node pool for a slice: the choices of capacity, and the request of each. Pure."""
