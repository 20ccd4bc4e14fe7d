"""The Kubernetes boundary: list-watches, live reads, Lease election, Events; every failure is a ClusterError."""
