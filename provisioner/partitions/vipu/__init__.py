"""The boundary to V-IPU servers."""
