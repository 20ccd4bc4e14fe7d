"""TPUNodeGroups as node pools, created and deleted through the Kubernetes API, on clusters without GKE."""
