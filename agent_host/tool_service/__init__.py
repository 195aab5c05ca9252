"""The Backend Tool Service (BT): tools that run on a server, for hosts that call them over HTTP."""
