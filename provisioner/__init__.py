"""Creates a TPU node pool on Google Kubernetes Engine when pods need it, and deletes it when nothing does."""

__version__ = "0.1.0"
