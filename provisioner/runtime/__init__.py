"""Infrastructure of all controllers: clock, logs, HTTP server, parallel calls. Contains nothing about TPUs or IPUs."""
