"""TPU slices on clusters that run on Compute Engine without GKE: the kinds of tpu.google.com, and what serves them."""
