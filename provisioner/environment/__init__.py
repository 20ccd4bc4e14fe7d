"""Computes the TPU variables of a pod, as a patch and warnings, from the raw pod and the raw owner of the pod."""
