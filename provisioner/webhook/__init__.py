"""The webhook server: the hooks of all products behind one address."""
