"""TPUNodeGroups as node pools, made and deleted through the Kubernetes API, on clusters without GKE."""
