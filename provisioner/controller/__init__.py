"""The loop: observe, decide, act."""
