"""Forecasts the node pools that the provisioner would create for objects that are not in the cluster yet. Pure.

Not handled: most unknown fields and fields of a wrong type are ignored here, although the API server may reject them.
"""
