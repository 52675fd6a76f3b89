"""Settings of an engine, measured on this machine: what to try, what was measured, which one is best."""
