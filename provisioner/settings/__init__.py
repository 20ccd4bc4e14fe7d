"""Every option of the controller, and the effective settings. Pure: the environment is handed in."""

from provisioner.settings.forms import (
    Prices,
    go_bool,
    go_duration_seconds,
    is_loopback,
    parse_networks,
    parse_prices,
    region_of,
)
from provisioner.settings.option import Group, Option, SettingsError, read, readable
from provisioner.settings.options import OPTIONS, Settings
from provisioner.settings.reading import given, read_settings, warnings_about, warnings_about_environment

__all__ = [
    "OPTIONS",
    "Group",
    "Option",
    "Prices",
    "Settings",
    "SettingsError",
    "given",
    "go_bool",
    "go_duration_seconds",
    "is_loopback",
    "parse_networks",
    "parse_prices",
    "read",
    "read_settings",
    "readable",
    "region_of",
    "warnings_about",
    "warnings_about_environment",
]
