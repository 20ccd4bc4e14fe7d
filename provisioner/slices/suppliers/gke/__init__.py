"""GKE's node pools in our own types: no type of Google's libraries leaves this package."""
