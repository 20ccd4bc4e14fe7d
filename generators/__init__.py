"""Generators of files in `deploy/` from the code, such as alerts and CRDs, and of overlays and releases."""
