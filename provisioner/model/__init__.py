"""Types of observations and decisions. Independent of Kubernetes' JSON and of Google's protocol buffers."""
