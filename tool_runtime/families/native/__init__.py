"""The native family (NT): its specifications, which cost a start nothing, and what runs them."""
