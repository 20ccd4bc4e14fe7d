"""The REST API with which init containers and users request, inspect and release partitions."""
