"""Types of the state of a cluster, and functions on them, without Kubernetes' JSON and Google's protocol buffers."""
