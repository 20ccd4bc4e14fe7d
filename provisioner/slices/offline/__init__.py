"""Forecasts decisions about objects that have not been applied yet. Pure.

Not handled: fields that do not exist or have a wrong type, which the API server rejects; the latter count as absent.
"""
