"""Which pools go, when, and for which reason. Pure."""
