"""Sessions, deadlines and the metadata server: what every Google API needs."""
