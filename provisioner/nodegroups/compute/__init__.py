"""Client of Compute Engine: calls, records of resources, JSON, and the meaning of errors."""
