"""Tools to test mods with: oracles, error budgets, random mods, fake devices. Shipped, because users write their own mods."""
