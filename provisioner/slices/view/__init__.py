"""Read model of slices, pools and capacity, which the status page, the commands and the API show."""
