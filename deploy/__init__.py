"""Installing the controller: manifests, chart, and the commands that make them fit a cluster or a release."""
