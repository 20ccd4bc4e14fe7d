"""What every controller has: clock, logs, the HTTP server, work in parallel. It knows no product."""
