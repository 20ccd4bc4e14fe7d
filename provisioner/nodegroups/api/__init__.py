"""The API tpu.google.com/v1alpha1: its records, their JSON, its names, and the CustomResourceDefinitions."""
