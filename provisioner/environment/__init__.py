"""Computes the TPU variables of a pod, as a patch and warnings, from the pod and its owner (raw JSON). Pure."""
