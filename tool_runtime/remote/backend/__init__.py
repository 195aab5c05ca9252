"""Tools that the Backend Tool Service runs (AH 7.6, BT)."""
