"""Types of the state of a cluster and of decisions, independent of Kubernetes' JSON and Google's protocol buffers."""
