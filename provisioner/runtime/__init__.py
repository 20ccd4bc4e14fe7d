"""Infrastructure of all processes, such as clock, logs, metrics and HTTP server. Has nothing about TPUs or IPUs."""
