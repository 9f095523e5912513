"""Timing and peers, shared by the demo and by the scripts in benchmarks/."""
