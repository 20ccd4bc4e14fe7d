"""The commands of `tpu-rehearsal`."""
