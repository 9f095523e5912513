"""torch's own fused attention on the CPU, for requests that change no score: the best kernel there for plain and causal."""
