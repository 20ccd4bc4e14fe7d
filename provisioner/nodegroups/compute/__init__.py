"""Client of Compute Engine: records of its resources, the protocol of its calls, and the meaning of its errors."""
