"""Layer 2: what is asked, of what device. Plain data; no framework."""
