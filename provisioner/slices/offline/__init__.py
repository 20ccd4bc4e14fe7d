"""Forecasts what the provisioner would do about objects that have not been applied yet. Pure.

Objects and settings are arguments. Not handled: fields that do not exist or have a wrong type, which the API server
rejects; a field of a wrong type counts as absent.
"""
