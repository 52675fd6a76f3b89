"""What the gateway records about its work: the request log, counters, and the log on standard error."""
