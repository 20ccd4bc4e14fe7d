"""State that is kept between rounds, and how responses of GKE change it. Pure."""
