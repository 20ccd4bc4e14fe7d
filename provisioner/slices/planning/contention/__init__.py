"""Shares scarce resources among slices: the order of the line, the limits, and the supplier's operations. Pure."""
