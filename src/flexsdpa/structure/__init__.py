"""Layer 2: what a program implies about the Sq x Skv grid. "Unknown" is always a legal answer; a wrong one never is."""
