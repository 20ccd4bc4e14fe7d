"""Bootstrap of machines into the cluster: their tokens, metadata, and the startup script that runs at each boot."""
