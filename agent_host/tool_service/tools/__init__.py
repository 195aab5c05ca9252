"""The tools that come with the service."""
