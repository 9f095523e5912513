"""Adapters for libraries built on PyTorch."""
