"""The TPU environment of pods: pure, from a pod and its owner, as raw JSON, to a patch and warnings."""
