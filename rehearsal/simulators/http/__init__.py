"""Common parts of all simulated services: sockets, the log of calls, faults, settings, and scheduled callbacks."""
