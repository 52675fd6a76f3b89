"""The sound in requests and answers; pure."""
