"""Layer 4: kernels. Each folder holds rules.py (limits as data), lower.py (program -> text) and build.py (makes plans)."""
