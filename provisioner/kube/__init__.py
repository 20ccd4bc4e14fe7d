"""The Kubernetes boundary: list-watches, live reads, Lease election, Events.

No type and no exception of the kubernetes package leaves it; every failure is a ClusterError (see errors.py).
"""
