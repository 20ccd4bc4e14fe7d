"""What there is, for people: one read model, which page, commands and API show. Pure."""
