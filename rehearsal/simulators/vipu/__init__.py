"""A simulated V-IPU server, and a `vipu` command of the surface that the real one has."""
