"""The page that shows the gateway at work."""
