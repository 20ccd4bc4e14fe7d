"""What is remembered between rounds, and what answers teach. Pure."""
