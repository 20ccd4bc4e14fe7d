"""What is observed and what is decided: frozen types without behaviour of their own, shared by all layers.

Nothing here knows Kubernetes' JSON or Google's protocol buffers; the boundaries (`cluster`, `gke`) translate.
"""
