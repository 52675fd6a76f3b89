"""`/v1/messages`."""
