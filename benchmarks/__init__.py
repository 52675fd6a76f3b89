"""What the gateway costs, measured against its peers. `README.md` tells how to run each."""
