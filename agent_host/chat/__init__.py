"""`agent-host chat`: a conversation at the terminal over session processes."""
