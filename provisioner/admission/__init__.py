"""A server for admission webhooks over TLS: decodes reviews and encodes the answers. Contains no webhooks."""
