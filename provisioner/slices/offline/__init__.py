"""Forecasts decisions about objects that have not been applied yet. Pure.

Not handled: unknown fields and fields of a wrong type, which the API server rejects; the latter count as absent here.
"""
