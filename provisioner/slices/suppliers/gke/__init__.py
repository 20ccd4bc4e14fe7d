"""GKE's node pools in the provisioner's own types: no type of Google's libraries leaves this package."""
