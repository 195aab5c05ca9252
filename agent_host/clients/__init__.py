"""What every face of the host stands on: session processes that are there at once, and many of them on one connection
each."""
