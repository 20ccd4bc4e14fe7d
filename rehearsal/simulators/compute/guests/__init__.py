"""Simulated software of the VMs: the join of their startup script, and a kubelet, with a real API server."""
