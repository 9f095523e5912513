"""Layer 2: how a callable becomes a program. Knows no framework; front ends hand in a :class:`Frontend`."""
