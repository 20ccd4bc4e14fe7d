"""Simulated cloud services for one machine, written independently of the provisioner from Google's documents."""
