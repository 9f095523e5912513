"""Layer 3: what is kept, under what name."""
