"""Which slice has which pool, and which pods fit which nodes. Pure."""
