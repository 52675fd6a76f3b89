"""Saved prompts that several machines share."""
