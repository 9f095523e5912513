"""flexsdpa for PyTorch."""

from flexsdpa.torch.api import attention

__all__ = ["attention"]
