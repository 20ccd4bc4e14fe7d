"""Which pools are created, where and on which terms, and what is in the way. Pure."""
