"""Creates and deletes node pools for the slices of workloads, in rounds: observe, decide, act."""
