"""Rehearsals on one machine: a real control plane, simulated clouds, and the provisioner between them."""
