"""Access to the Kubernetes API: list-watches, live reads, Lease election and Events."""
