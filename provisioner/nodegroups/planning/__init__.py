"""Decisions about node groups: from a snapshot of the cluster to a plan of calls and writes. Pure."""
