"""What the decision would be about objects that nobody has applied yet. Pure: objects and settings are handed in.

Not handled: fields that do not exist or are of a wrong type, which the API server rejects; the latter count as absent.
"""
