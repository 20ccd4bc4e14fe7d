"""Texts that users read about decisions. Pure; decisions do not import them."""
