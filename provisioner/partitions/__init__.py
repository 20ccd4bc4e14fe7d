"""Partitions of Graphcore IPUs for pods that request them by annotation."""
