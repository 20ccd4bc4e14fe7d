"""Access to the Kubernetes API: list-watches, live reads, Lease election, Events, and parsers of objects."""
