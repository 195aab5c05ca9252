"""The face of the host: what clients drive, the command line and the server of `serve` among them.

Public, through `import agent_host`: `options`, `callbacks`, `results`, `tasks`, `sessions`. The others are for the
clients that this distribution has itself, and may change without notice:

    hosting           the session of a server
    records           what is on record under an id
    dry_runs          what a policy would say; `rejudging`: what it would have said
    machine_checks    what this machine has
"""
