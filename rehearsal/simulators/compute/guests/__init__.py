"""What runs on the simulated VMs: the startup script's join, and a kubelet, against the API server that it leads to."""
