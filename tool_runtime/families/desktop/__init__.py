"""The desktop family (TR 4): its specifications, which cost a start nothing, and what runs them."""
