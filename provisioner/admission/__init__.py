"""One server for admission webhooks: reviews in, answers out, over TLS. It knows no product."""
