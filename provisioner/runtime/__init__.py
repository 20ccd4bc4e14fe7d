"""Infrastructure of all controllers: clock, logs, HTTP server, parallel calls. Independent of the products."""
