"""The version, which keys hold."""

__version__ = "0.1.0"
