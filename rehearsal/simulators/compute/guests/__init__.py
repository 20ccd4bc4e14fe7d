"""Simulated software of the VMs, which joins a real cluster like the startup script, and runs a kubelet."""
