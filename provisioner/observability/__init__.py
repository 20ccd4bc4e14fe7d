"""Logs, metrics, and the HTTP pages for probes and scrapers. Knows nothing of pools or JobSets."""
