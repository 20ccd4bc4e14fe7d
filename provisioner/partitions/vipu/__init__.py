"""Interface to V-IPU servers."""
