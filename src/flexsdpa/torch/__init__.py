"""flexsdpa for PyTorch."""

from flexsdpa.torch.api import attention
from flexsdpa.torch.explaining import explain
from flexsdpa.torch.snapshot import MaskMod, ScoreMod
from flexsdpa.torch.varlen import varlen_attention

__all__ = ["MaskMod", "ScoreMod", "attention", "explain", "varlen_attention"]
