"""How machines join the cluster: a token for each, what its metadata says, and the script that it runs at each boot."""
