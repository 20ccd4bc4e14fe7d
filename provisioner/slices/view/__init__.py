"""Read model of slices, pools and capacity for the API, the status page and commands such as `explain`."""
