"""The API tpu.google.com/v1alpha1: records, JSON, names, shapes, error codes, and the CustomResourceDefinitions."""
