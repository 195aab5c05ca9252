"""Shipped test tools, for users' tests and CI jobs too. Import the module that you need; this one stays empty."""
