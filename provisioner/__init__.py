"""Just-in-time TPU node pools for JobSets on Google Kubernetes Engine."""

__version__ = "0.1.0"
