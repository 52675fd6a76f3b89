"""Request log and logs."""
