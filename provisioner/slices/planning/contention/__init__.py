"""Shares scarce resources among slices: the queue, the limits, and the supplier's operations. Pure."""
