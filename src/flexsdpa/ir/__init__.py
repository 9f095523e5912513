"""Layer 1: what a mod is. A mod is a :class:`Program`, and its text is its identity."""
