"""Who supplies the capacity of slices."""
