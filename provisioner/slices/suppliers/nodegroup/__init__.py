"""TPUNodeGroups as node pools, for clusters without GKE. They are created and deleted through the Kubernetes API."""
