"""Controller of TPUNodeGroups: TPU slices on Compute Engine for clusters without GKE, API group tpu.google.com."""
