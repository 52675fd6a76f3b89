"""What a request becomes before an engine sees it. Pure: no I/O."""
