"""The webhook server: all webhooks behind one address."""
