"""What the gateway says about its paths."""
