"""cuDNN's fused attention graphs on CUDA devices, with the user's program compiled into them."""
