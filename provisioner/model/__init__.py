"""What is observed and what is decided: types that know neither Kubernetes' JSON nor Google's protocol buffers."""
