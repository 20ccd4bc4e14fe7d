"""Decisions on partitions: pure functions on frozen records."""
