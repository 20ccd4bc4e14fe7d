"""GKE as a supplier of node pools. Messages of Google's client library do not leave this package."""
