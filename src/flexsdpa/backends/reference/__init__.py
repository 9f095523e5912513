"""The reference backend: tiled online softmax over torch tensors. Any device that torch has, every feature, O(S) memory."""
