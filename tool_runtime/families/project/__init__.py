"""A project's own tools: programs of the workspace that its manifests describe."""
