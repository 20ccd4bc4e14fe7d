"""Exports the settings of the controller of slices; each other process has its own module. Pure."""

from provisioner.settings.option import Group, Option, SettingsError, read, readable
from provisioner.settings.options import OPTIONS, Settings
from provisioner.settings.reading import given, read_settings, warnings_about, warnings_about_environment

__all__ = [
    "OPTIONS",
    "Group",
    "Option",
    "Settings",
    "SettingsError",
    "given",
    "read",
    "read_settings",
    "readable",
    "warnings_about",
    "warnings_about_environment",
]
