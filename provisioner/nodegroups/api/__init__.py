"""The API tpu.google.com/v1alpha1: its records, how they are read and written, its names, and its definitions."""
