"""The Backend Tool Service (BT): tools that run on a server and that hosts call over HTTP."""
