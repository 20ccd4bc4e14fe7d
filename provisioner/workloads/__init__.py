"""The kinds of workloads, a file each: what their objects and pods say, read from raw JSON. Pure."""
