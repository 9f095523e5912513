"""Calls of the frameworks' fused attention as other projects ask them, and the rules by which cuDNN serves them: data only."""
