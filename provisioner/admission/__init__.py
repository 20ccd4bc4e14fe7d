"""Parts of a TLS server for admission webhooks: certificates, reviews and answers. Contains no webhooks."""
