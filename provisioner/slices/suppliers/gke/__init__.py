"""GKE as a supplier of node pools."""
