"""Sessions, errors and the metadata server: the common part of Google's API clients."""
