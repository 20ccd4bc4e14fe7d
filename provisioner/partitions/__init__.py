"""Partitions of Graphcore IPUs for pods that ask for them by annotation."""
