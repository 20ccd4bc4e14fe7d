"""The API tpu.google.com/v1alpha1: records, JSON, names, and the CustomResourceDefinitions."""
