"""Calls of frameworks' fused attention, and the rules by which each library serves them: data, and the code that asks it."""
