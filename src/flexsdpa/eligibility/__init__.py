"""Layer 3: who may serve a request, and why not. Rules are data; all of them run, so the user sees every reason."""
