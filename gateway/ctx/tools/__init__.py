"""Tools as executable files."""
