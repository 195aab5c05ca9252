"""The host as an agent of the Agent Client Protocol: editors drive session processes (decision 112)."""
