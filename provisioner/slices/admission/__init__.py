"""What is said of workloads, and changed in them, when they are created. Pure: reviews and settings are handed in."""
