"""What is to be done about node groups: from one snapshot of the world to a plan. Pure."""
