"""A simulated V-IPU server, and a `vipu` command with the verbs, options and tables of the real command."""
