"""Forecasts the node pools that the provisioner would create for objects that are not in the cluster yet. Pure.

Not handled: the API server also rejects unknown fields and fields of a wrong type. Here, most of them are ignored.
"""
