"""What every simulated service is made of: sockets, calls and their log, faults, settings, what is due when."""
