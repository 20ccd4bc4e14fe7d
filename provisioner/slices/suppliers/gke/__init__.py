"""GKE as a supplier of node pools. Protobuf messages of Google's library do not leave this package."""
