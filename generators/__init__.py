"""Writing what `deploy/` has from the code, such as alerts and CRDs, and overlays of clusters and releases."""
